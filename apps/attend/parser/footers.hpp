// The texts that --help prints below the flags of the program and of each command.
#pragma once

namespace attend::cli {

inline constexpr const char* kMainFooter = R"(Examples:
  attend generate --batch_size 2 --num_heads 8 --seq_len 512 --head_dim 64
  attend run --data data/B2_H8_S512_D64 --mode both --check
  attend bench --grid seed --compute cpu,reference
  attend COMMAND --help

--batch-size is --batch_size, here and for every flag. Flags and names are written out: no abbreviations.
Exit status: 0 done, 1 a check failed, 2 bad usage, bad input or missing hardware; 130 after SIGINT, 143 after SIGTERM,
129 after SIGHUP: the program ends within a second or two and leaves no unfinished file.)";

inline constexpr const char* kGenerateFooter =
    R"(Writes OUTPUT_DIR/B2_H8_S512_D64/{Q,K,V}.bin: raw little-endian numbers, C order,
(batch, heads, seqlen, head_dim).
The values are N(0,1) and depend on the seed alone: the same bytes on every machine.
Asks for the space first: where it is not free, nothing is written.
What the plain name does not say is added to it: B2_H8_Hkv2_Sq128_Sk512_D64_Dv32_bf16.

Examples:
  attend generate
  attend generate --batch_size 1 --num_heads 32 --num_heads_kv 8 --seq_len 4096 --head_dim 128 --dtype bf16 --seed 7)";

inline constexpr const char* kRunFooter =
    R"(Reads a folder that `attend generate` wrote, or three .npy files, and writes O, logsumexp (forward) and dQ, dK,
dV (backward) beside them, or into OUTPUT_DIR. Backward alone needs the O and logsumexp of an earlier forward with the
same options. The incoming gradient is dO, or ones where there is none.
The files of one run appear at one moment, also where the program is killed: all are new or all are the earlier ones.
An output that is a link to an input or to another tensor is refused; other links are followed and stay.
--check compares with a float64 reference. Half precision may err twice as much as the plain algorithm in that type,
and by the rounding of the result. Large float32 scores may take the results off by what their rounding does, and sums
that cancel may take gradients off by theirs.
--score changes each score by a function in a line of text, on CPUs; docs/custom_scores.md has the language. Gradients
of the tensors that it reads become d_NAME.npy.
With --ring the sequence is cut over the ranks of a ring on CPUs: threads of this process with --ranks N, else the
processes of an mpirun. Each reads the inputs and works on its share, the first one checks and writes the same files as
one process would. Open MPI refuses root, and more ranks than cores, without the two flags of the last example.

Examples:
  attend run --data data/B2_H8_S512_D64 --mode both --causal --check
  attend run --data data/B2_H8_S512_D64 --compute reference --json result.json
  attend run --q Q.npy --k K.npy --v V.npy --mode both --output_dir out
  attend run --data data/B2_H8_S512_D64 --mode both --check --score 'score - 0.1 * abs(q - k)'
  attend run --data data/B2_H8_S512_D64 --check --score 'doc[q] == doc[k] ? score : -inf' --tensor doc=doc.npy
  attend run --ring zigzag --ranks 4 --data data/B2_H8_S512_D64 --mode both --causal --check
  mpirun --allow-run-as-root --oversubscribe -n 4 attend run --ring zigzag --data data/B2_H8_S512_D64 --check)";

inline constexpr const char* kBenchFooter =
    R"(Times random data of each size in the grid, or of one problem: the median of --repeat runs after one to warm up.
--json and --csv are written after each pass of a size, so that what ends the program costs only what was under way.
--grid masks times masks and scores that are texts (docs/custom_scores.md), beside the options of the same meaning, on
one problem: --problem, or 2,16,8192,128 of bf16 on a GPU and 1,4,1024,64 of f32 on a CPU. Speeds are those of the pairs
that a mask leaves.
A grid file is JSON: [{"B": 2, "H": 8, "S": 512, "D": 64}, {"B": 1, "H": 32, "Hkv": 8, "Sq": 1, "Sk": 4096, "D": 128}]

Examples:
  attend bench
  attend bench --grid seed --compute cpu,cpu_naive --mode forward --causal --csv times.csv
  attend bench --problem 2,16,2048,64 --dtype bf16 --compute cpu --causal
  attend bench --grid sizes.json --dtype bf16 --json times.json
  attend bench --grid masks --device cuda --json masks.json)";

inline constexpr const char* kCompileFooter =
    R"(Compiles the GPU kernels' usual variants with NVRTC and prints what each takes. Needs no GPU. Machine code goes
to the cache ($ATTEND_CACHE_DIR, else the XDG cache folder), where later calls find it. Exit status 1 where a kernel
that claims to need none has spills or a stack frame.

Examples:
  attend compile
  attend compile --cover
  attend compile --arch sm_90a --compute naive --json kernels.json)";

inline constexpr const char* kLadderFooter =
    R"(Checks every rung of the ladder that runs here, and the kernels of the product where it ends, against the float64
reference, full and causal, at odd sizes; then times them in turns at one size for each type, beside a matrix product
by cuBLAS where that is installed. Exit status 1 where a check failed: then nothing is timed.

Examples:
  attend ladder
  attend ladder --compute fa2,wgmma --repeat 20
  attend ladder --compute wgmma_specialized,sm90_forward,sm90_backward
  attend ladder --json results/h200/ladder.json)";

inline constexpr const char* kSweepFooter =
    R"(Times many variants of one family of kernels on one problem: its own choice, and every combination of what --set
names. All are compiled first, on all cores; then they are timed in turns, and their results compared with that of the
family's own choice. What can be set: attend info --explain B,H,S,D names it.

Examples:
  attend sweep --compute simt --problem 2,16,2048,64 --set block_m=32,64 --set threads_x=8,16
  attend sweep --compute sm90_forward --problem 2,16,8192,128 --causal --set block_n=96,128 --set overlap=0,1
  attend sweep --compute simt --problem 1,32,4096,128 --mode backward --set keys_min_blocks=1,2)";

inline constexpr const char* kRingFooter =
    R"(Computes one random problem, whose S are the tokens of all ranks together, and shows for each step what was
computed, what travelled, and how much of that nothing hid. Ranks are the processes of an mpirun, or GPUs of this
machine over NCCL, or threads, which have GPU r % N for rank r where there are N. Ideal is what the slowest rank takes
for its share of the work alone, its rows against the keys that they see: all ranks do theirs at the same time, without
a ring, in turns with it. --explain compares the algorithms by the model that automatic chooses by, without computing
anything.

Examples:
  attend ring --ranks 4 --problem 1,8,4096,64 --causal
  attend ring --problem 1,16,131072,128 --causal --sharding zigzag --mode both --json ring.json
  attend ring --ranks 8 --problem 1,32,8192,128 --num_heads_kv 8 --algorithm all_to_all
  attend ring --ranks 64 --problem 1,32,1048576,128 --causal --device cuda --explain
  mpirun --allow-run-as-root --oversubscribe -n 4 attend ring --problem 1,8,4096,64 --causal --mode forward)";

inline constexpr const char* kCacheFooter =
    R"(Kernels for GPUs are compiled at their first use and kept on disk: show says where, how many, and of which
kernels; clear removes them all, and no file that is not one; limit says how many bytes they may take.
The folder is $ATTEND_CACHE_DIR, else $XDG_CACHE_HOME/attend, else $HOME/.cache/attend. Beyond $ATTEND_CACHE_LIMIT
(1GiB if not set; 512MiB, unlimited, 0 to keep nothing) the kernels that were not used for the longest time go first.

Examples:
  attend cache
  attend cache show --json
  attend cache clear
  attend cache limit)";

inline constexpr const char* kInfoFooter =
    R"(Examples:
  attend info
  attend info --explain 2,16,8192,128 --dtype bf16 --causal
  attend info --explain 1,32,1,128 --seq_len_k 8192 --num_heads_kv 8)";

}  // namespace attend::cli
