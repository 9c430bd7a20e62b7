"""torch's flex_attention: functions of scores and masks are traced, and become texts of docs/custom_scores.md."""
