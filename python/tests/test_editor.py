"""Tests that all targets, tasks, programs, presets and compilation databases that the files in .vscode/ name exist."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".vscode"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the tests are not in the repository")


def read(name):
    return json.loads((FOLDER / name).read_text())


def test_tasks_call_what_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    tasks = read("tasks.json")["tasks"]
    labels = [task["label"] for task in tasks]
    assert len(set(labels)) == len(labels)
    for task in tasks:
        assert set(task.get("dependsOn", ())) <= set(labels)
        command = task.get("command", "")
        assert set(re.findall(r"(?<!c)make ([a-z-]+)", command)) <= targets
        assert set(re.findall(r"--preset ([a-z]+)", command)) <= presets
        assert all((ROOT / script).exists() for script in re.findall(r"tools/[a-z_.]+", command))


def test_launches_build_what_they_start():
    labels = {task["label"] for task in read("tasks.json")["tasks"]}
    presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    example = re.search(r"^EXAMPLE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    for launch in read("launch.json")["configurations"]:
        assert launch["preLaunchTask"] in labels
        built = re.fullmatch(r"\$\{workspaceFolder\}/build/([a-z]+)/attend", launch.get("program", ""))
        if built:
            assert built[1] in presets and example in launch["args"]


def test_the_editor_reads_kernels_with_the_flags_of_the_build():
    (configuration,) = read("c_cpp_properties.json")["configurations"]
    folder = pathlib.PurePosixPath(configuration["compileCommands"]).parent.name
    assert folder in {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    assert "CMAKE_EXPORT_COMPILE_COMMANDS ON" in (ROOT / "cmake" / "AttendCompiler.cmake").read_text()
    assert read("settings.json")["files.associations"]["*.cuh"] == "cuda-cpp"
    for name in configuration["includePath"]:
        assert (ROOT / name.replace("${workspaceFolder}", ".")).is_dir()
