"""`plesio estimate`, from its options to its files."""

import json
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio_planning.estimate.estimate import Estimate
from plesio_planning.estimate.training import Training

LLAMA = "estimate --model llama-70b --cluster 256xh100 --tokens 300B"
EIGHT = "estimate --model llama-70b --cluster 8xh100 --tokens 1T"
SIXTY_FOUR = "estimate --model llama-3-8b --cluster 64xh100 --tokens 1B"
SMALL = "estimate --model llama-2-7b --cluster 8xh100 --tokens 1B --batch 64"

PLANNED = "estimate --model llama-3-8b --tokens 1T --start 2027-01-01 --by 2027-03-01 --accelerators h100,a100"

LLAMA_CONFIG = {  # as Hugging Face's transformers writes it for Llama 3 8B
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
GPT_2_CONFIG = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


def test_a_layout_is_estimated(capsys: pytest.CaptureFixture[str]):
    assert invoke(f"{LLAMA} --tp 8 --pp 4".split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith("llama-2-70b with 300B tokens on 256xh100 takes ")
    for words in ("% interval", "MFU", "HFU", "goodput", "MWh", "t CO2e", "pipeline bubble", "at +20 %", "free"):
        assert words in out, words
    assert err == ""


@pytest.mark.parametrize(
    ("values", "parameters", "layout"), [(LLAMA_CONFIG, "8.03B", "--tp 2"), (GPT_2_CONFIG, "124M", "--precision fp16")]
)
def test_a_config_of_hugging_face_is_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, object], parameters: str, layout: str
):
    path = tmp_path / "meta" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(values))
    assert invoke(["estimate", "--model", str(path), "--cluster", "8xh100", "--tokens", "1B", *layout.split()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("meta with 1B tokens on 8xh100")
    assert next(line.split()[-1] for line in out.splitlines() if line.startswith("parameters ")) == parameters


def test_images_are_trained_data_parallel(capsys: pytest.CaptureFixture[str]):
    command = "estimate --model resnet50 --cluster 64xv100 --precision fp16 --tokens 115M"
    assert invoke(command.split()) == 0
    assert "2,048 images" in capsys.readouterr().out


def test_a_search_shows_layouts_and_machines_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = [*SMALL.split(), "--search", "--top", "3", "--devices", "4,16", "--out", str(tmp_path / "out")]
    assert invoke(command) == 0
    out, err = capsys.readouterr()
    assert "The fastest layout is " in out
    assert " do not fit into memory" in out
    assert all(machine in out for machine in ("4xh100", "8xh100", "16xh100"))
    assert err == ""
    names = {path.name for path in (tmp_path / "out").iterdir()}
    charts = {"degrees", "front", "parts", "tornado", "memory"}
    assert names == {"estimate.html", "estimate.json", *(f"estimate-{slug}.png" for slug in charts)}
    page = (tmp_path / "out" / "estimate.html").read_text()
    assert page.count("<figure") == len(charts)
    values = json.loads((tmp_path / "out" / "estimate.json").read_text())
    assert len(values["search"]["fastest"]) == 3
    assert values["results"]["total_s"] == pytest.approx(sum(values["results"]["parts_s"].values()))
    assert {machine["machine"] for machine in values["search"]["machines"]} == {"4xh100", "8xh100", "16xh100"}


def test_failures_show_every_way_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(f"{LLAMA} --tp 8 --pp 4 --failures --out {tmp_path}".split()) == 0
    out = capsys.readouterr().out
    for words in ("plain", "checkpoint and restart", "elastic", "local SGD, 64 groups", "1,048,576"):
        assert words in out, words
    values = json.loads((tmp_path / "estimate.json").read_text())
    ways = {way["name"]: way for way in values["failures"]["ways"]}
    # the way that the estimate itself is made with
    restarted = ways["checkpoint and restart"]
    assert restarted["exact"] == pytest.approx(values["results"]["goodput"], rel=1e-9)
    low, high = restarted["work_ci95"]
    assert low - 0.001 <= values["results"]["goodput"] <= high + 0.001
    assert (tmp_path / "estimate-failing-devices.png").exists()


@pytest.mark.parametrize("more", ["--devices 16", "--accelerators h100"])
def test_a_search_may_compare_its_machine_with_none(capsys: pytest.CaptureFixture[str], more: str):
    line = f"estimate --model llama-2-7b --cluster 16xh100 --tokens 1B --search --zero 1 --cp 1 {more}"
    assert invoke(line.split()) == 0
    machines = capsys.readouterr().out.partition("Time and cost by machine:")[2].partition("The run:")[0]
    assert machines.count("xh100") == 1


def test_a_search_without_a_batch_takes_one_that_suits_the_machine(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model llama-70b --cluster 1000xh100 --tokens 1B --search --zero 1 --cp 1"
    assert invoke(line.split()) == 0
    assert "1,500 sequences" in capsys.readouterr().out


def test_a_search_compares_accelerators(capsys: pytest.CaptureFixture[str]):
    assert invoke(f"{SMALL} --search --accelerators a100,gb200,tpu-v5p,mi300x --tp 1 --pp 1 --cp 1".split()) == 0
    out = capsys.readouterr().out
    for machine in ("8xa100", "8xh100", "8xgb200", "8xtpu-v5p", "8xmi300x"):
        assert machine in out
    # racks need not be full, hosts of eight must be
    rack = "estimate --model llama-2-7b --cluster 100xgb200 --tokens 1B --batch 100 --search --tp 1 --pp 1"
    assert invoke(f"{rack} --devices 50".split()) == 0
    assert "50xgb200" in capsys.readouterr().out
    assert invoke(f"{rack} --accelerators h100".split()) == 2
    assert "--accelerators: 100 devices do not fill hosts of 8; write 96 or 104" in capsys.readouterr().err


def test_bandwidths_and_conditions_count(monkeypatch: pytest.MonkeyPatch):
    shown: list[Estimate] = []
    monkeypatch.setattr("plesio_planning.cli.estimate._show", lambda found, **_: shown.append(found))

    def run(*options: str) -> Training:
        assert invoke([*f"{LLAMA} --tp 8 --pp 4".split(), *options]) == 0
        return shown[-1].training

    usual = run()
    assert run("--network-bandwidth", "100 Gbit/s").total_s > usual.total_s
    assert run("--local-bandwidth", "50 GB/s").total_s > usual.total_s
    assert run("--storage-bandwidth", "1 GB/s").goodput.share < usual.goodput.share
    assert run("--device-mtbf", "5000 h").goodput.share < usual.goodput.share
    assert run("--restart", "2 h").goodput.share < usual.goodput.share
    assert run("--price", "1.5").cost == pytest.approx(usual.cost / 2)
    assert run("--pue", "2.2").energy_kwh == pytest.approx(2 * usual.energy_kwh)
    assert run("--carbon", "0").carbon_kg == 0
    assert run("--step-error", "0.2").interval_s[1] > run("--confidence", "0.95").interval_s[1] > usual.interval_s[1]
    assert run("--batch", "2048").step.num_samples == 2048
    assert run("--sequence-length", "2048").step.num_samples == 2048  # as many tokens
    assert run("--zero", "0", "--micro-batch", "2", "--recomputation", "full").layout.micro_batch == 2


def test_sizes_and_settings_count(monkeypatch: pytest.MonkeyPatch):
    shown: list[Estimate] = []
    monkeypatch.setattr("plesio_planning.cli.estimate._show", lambda found, **_: shown.append(found))

    def run(line: str) -> Training:
        assert invoke(["estimate", "--tokens", "100B", *line.split()]) == 0
        return shown[-1].training

    sizes = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocabulary 128256 --sequence-length 8192"
    named = run("--model llama-3-8b --cluster 64xh100 --tp 2")
    by_sizes = run(f"{sizes} --gated --cluster 64xh100 --tp 2")
    assert by_sizes.total_s == named.total_s
    assert by_sizes.model.name == "transformer-8.03B"
    deeper = run("--model llama-3-8b --layers 64 --cluster 64xh100 --tp 2")
    assert deeper.model.name == "llama-3-8b (changed)"
    assert deeper.total_s > 1.8 * named.total_s
    assert run("--model llama-3-8b --window 1024 --cluster 64xh100 --tp 2").total_s < named.total_s
    assert run("--model llama-3-8b --parallel-blocks --cluster 64xh100 --tp 2").total_s < named.total_s
    assert not run("--model llama-3-8b --cluster 64xh100 --tp 2 --no-sequence-parallel").layout.sequence_parallel
    waits = run("--model llama-3-8b --cluster 64xh100 --tp 2 --no-overlaps-gradients")
    assert waits.total_s > named.total_s
    less = run("--model llama-3-8b --cluster 64xh100 --tp 2 --no-overlaps-gradients --gradients bf16")
    assert less.total_s < waits.total_s
    assert less.memory.gradients_bytes == waits.memory.gradients_bytes / 2


def test_a_day_and_a_budget_find_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke([*PLANNED.split(), "--budget", "300k", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-3-8b by 2027-03-01 and for $300k: the cheapest machine that does it with")
    for words in ("1.4 times", "a week more", "a tenth more money", "half the network"):
        assert words in out, words
    plans = out[out.index("Plans by") : out.index("The run:")]
    assert max(map(len, plans.splitlines())) <= 80
    values = json.loads((tmp_path / "estimate.json").read_text())["plans"]
    best = values["plans"][0]
    assert best["chance"] >= 0.9
    assert best["cost_usd"] == min(plan["cost_usd"] for plan in values["plans"] if plan["chance"] >= 0.9)
    assert (tmp_path / "estimate-chance.png").exists()
    assert (tmp_path / "estimate-plans.png").exists()


def test_a_machine_that_is_there_is_used_as_far_as_needed(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model llama-3-8b --tokens 1T --cluster 1024xh100 --start 2027-01-01 --by 2027-03-01"
    assert invoke(line.split()) == 0
    out = capsys.readouterr().out
    assert "the cheapest machine that does it with 90 % confidence is 32xh100" in out
    assert invoke([*line.split(), "--devices", "1000"]) == 0
    assert "is 1000xh100, which ends on" in capsys.readouterr().out


def test_sites_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = f"{LLAMA} --tp 8 --pp 4 --sites 4 --site-latency 20ms --local-steps 30 --out {tmp_path}"
    assert invoke([*line.split(), "--site-bandwidth", "10 Gbit/s"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("Over 4 sites at 1.25 GB/s an exchange a step takes", "30 local steps in 8 fragments of 4 bits"):
        assert words in out, words
    ways = json.loads((tmp_path / "estimate.json").read_text())["sites"]["ways"]
    assert ways[1]["total_s"] < ways[0]["total_s"]
    assert (tmp_path / "estimate-sites.png").exists()


def test_a_layout_goes_to_a_program_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = "estimate --cluster 64xh100 --tokens 300B"
    first = f"{line} --model llama-3-70b --tp 8 --pp 4 --vpp 5 --batch 1024 --gradients fp32 --out {tmp_path / 'first'}"
    assert invoke([*first.split(), "--export", "megatron"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Megatron-LM core_v0.15.0")
    assert err.startswith("llama-3-70b with 300B tokens on 64xh100 takes ")
    (tmp_path / "train.sh").write_text(out)
    assert invoke(f"{line} --import {tmp_path / 'train.sh'} --out {tmp_path / 'second'}".split()) == 0
    assert capsys.readouterr().out.startswith("transformer-70.6B with 300B tokens on 64xh100 takes ")
    totals = [
        json.loads((tmp_path / name / "estimate.json").read_text())["results"]["total_s"]
        for name in ("first", "second")
    ]
    assert totals[0] == totals[1]
    # options change what is read, and what is not read is named
    (tmp_path / "train.sh").write_text(f"{out} --lr 1e-4")
    assert invoke(f"{line} --import {tmp_path / 'train.sh'} --model llama-3-8b --pp 1 --vpp 1 --zero 1".split()) == 0
    read = capsys.readouterr()
    assert "tp 8, dp 8, zero 1" in read.out
    assert read.err == "Nothing is read from these of the imported file: --lr\n"


def test_deepseek_v3_is_estimated(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model deepseek-v3 --cluster 2048xh800 --pp 16 --ep 64 --recomputation full --tokens 14.8T"
    assert invoke([*line.split(), "--batch", "15360"]) == 0
    assert "671B" in capsys.readouterr().out


def test_a_layout_that_only_a_lean_program_can_run_says_so(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model nemotron-340b --cluster 128xh100 --tp 8 --pp 8 --vpp 12 --batch 32 --tokens 1T"
    assert invoke(line.split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "With 18 bytes a parameter it would need 91.1 GiB of a device's 80 GiB" in out
    assert "a program that keeps gradients in BF16 and of master weights only the remainders, 75 GiB." in out
    assert invoke([*line.split(), "--gradients", "bf16", "--master-weight-remainders"]) == 0
    assert " ".join(capsys.readouterr().out.split()) == out
    assert invoke([*line.split(), "--gradients", "fp32"]) == 2
    error = capsys.readouterr().err
    assert "needs 91.14 GiB on each h100, which has 80 GiB; write --gradients bf16 and --master-weight-remai" in error


def test_a_search_keeps_in_the_host_what_does_not_fit_otherwise(capsys: pytest.CaptureFixture[str]):
    assert invoke([*EIGHT.split(), "--search", "--devices", "8", "--cp", "1"]) == 0
    assert "optimizer in the host" in capsys.readouterr().out


def test_a_search_tries_a_lean_program_where_that_is_left_open(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model nemotron-340b --cluster 128xh100 --tp 8 --pp 8 --vpp 12 --zero 1 --batch 32 --tokens 1T"
    assert invoke([*line.split(), "--search", "--devices", "64"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "takes 435 days" in out
    assert "The fastest layout is tp 8, pp 8, vpp 12, dp 2, zero 1, micro-batch 1, 14 bytes a parameter." in out
    assert "With 18 bytes a parameter it would need 91.1 GiB of a device's 80 GiB" in out
    assert invoke([*line.split(), "--search", "--devices", "64", "--gradients", "fp32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "takes 437 days" in out
    assert "14 bytes" not in out


def test_what_does_not_fit_is_estimated_only_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]):
    line = "estimate --model llama-70b --cluster 64xh100 --tp 4 --tokens 100B"
    assert invoke(line.split()) == 2
    assert "needs 130.5 GiB on each h100, which has 80 GiB; write --tp 2, --pp 8" in capsys.readouterr().err
    assert invoke([*line.split(), "--any-memory"]) == 0
    assert "It needs 130 GiB of a device's 80 GiB: it does not fit." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--model llama-3-8b --cluster 64xh100 --no-overlaps-tensor", "--no-overlaps-tensor"),
        ("--model llama-3-8b --cluster 64xh100 --splits-tensor", "--splits-tensor"),
        ("--model llama-3-8b --cluster 64xh100 --gathers-to-recompute --zero 3", "--gathers-to-recompute"),
        ("--model llama-3-8b --cluster 64xh100 --tp 2 --recomputation selective", "--recomputation"),
        ("--model llama-70b --cluster 64xh100 --tp 8 --pp 2 --no-overlaps-pipeline", "--no-overlaps-pipeline"),
        ("--model llama-3-8b --cluster 8xh100 --precision fp32 --zero 3 --tp 2 --gradients bf16", "--gradients"),
        ("--model resnet50 --cluster 64xv100 --precision fp16 --eager", "--eager"),
        ("--model llama-3-8b --cluster 64xh100 --tp 2 --window 100000", "--window"),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(capsys: pytest.CaptureFixture[str], line: str, option: str):
    assert invoke(["estimate", "--tokens", "100B", *line.split()]) == 2
    error = capsys.readouterr().err
    assert f" {option} has no effect on " in error
    assert error.endswith("; leave it out\n")


def test_a_setting_that_only_repeats_the_programs_own_is_accepted():
    assert (
        invoke([*["estimate", "--model", "llama-3-8b", "--cluster", "64xh100", "--tokens", "1B"], "--overlaps-tensor"])
        == 0
    )


@pytest.mark.parametrize("line", ["--head-size 128", "--window 1024 --window-layers 32", "--kv-heads 8"])
def test_a_size_that_only_repeats_the_models_own_is_accepted(line: str):
    command = ["estimate", "--model", "llama-3-8b", "--cluster", "64xh100", "--tokens", "1B", *line.split()]
    assert invoke(command) == 0


@pytest.mark.parametrize(
    ("line", "name", "when"),
    [
        ("--cluster 64xa100", "megatron-2022", "a100 in 2022"),
        ("--cluster 64xh100", "megatron-core", "h100 in 2024"),
        ("--cluster 64xh100 --zero 3 --year 2023", "fsdp-2023", "h100 in 2023"),
        ("--cluster 64xa100 --zero 3 --year 2021", "deepspeed-2021", "a100 in 2021"),
        ("--cluster 64xa100 --search --pp 1 --zero 1 --cp 1", "megatron-2022", "a100 in 2022"),
    ],
)
def test_software_is_chosen_by_layout_and_year(capsys: pytest.CaptureFixture[str], line: str, name: str, when: str):
    """The run is that of the program which the sentence names."""
    base = ["estimate", "--model", "llama-2-7b", "--tokens", "1B", "--batch", "64", *line.split()]
    assert invoke([*base, "--software", "auto"]) == 0
    chosen = capsys.readouterr().out
    assert f"`--software auto` is {name}: " in chosen
    assert f"on {when}." in chosen
    named = base[: base.index("--year")] if "--year" in base else base
    assert invoke([*named, "--software", name]) == 0
    assert capsys.readouterr().out.partition("(")[0] == chosen.partition("(")[0]


def test_a_search_that_shards_or_not_says_which_software_is_the_other(capsys: pytest.CaptureFixture[str]):
    assert invoke(f"{SMALL} --search --software auto --pp 1 --cp 1".split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "is megatron-core for all layouts of the search, on h100 in 2024; with `--zero 3` it is fsdp-2023." in out


@pytest.mark.parametrize("num_devices", [24, 40, 56, 72, 120])
def test_a_search_compares_half_of_the_hosts(num_devices: int, capsys: pytest.CaptureFixture[str]):
    line = (
        f"estimate --model gpt2 --cluster {num_devices}xa100 --tokens 1B --batch 2520 --search --zero 1 --pp 1 --cp 1"
    )
    assert invoke(line.split()) == 0
    assert f"{num_devices // 16 * 8}xa100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            f"{LLAMA} --tp 8 --pp 4 --vpp 3",
            "--vpp 3 does not divide the 20 layers of a stage of llama-2-70b; write 2 or 4",
        ),
        (f"{LLAMA} --layers 0", "--layers is 0; write 1 or more"),
        (f"{LLAMA} --kv-rank 512", "write --kv-heads 64"),
        ("estimate --cluster 8xh100 --tokens 1T", "needs more sizes; write --model, or --layers, --hidden, --heads"),
        ("estimate --cluster 8xv100 --tokens 1T --model resnet50 --heads 8", "no heads; leave --heads out"),
        (f"{LLAMA} --tp 1 --sequence-parallel", "write --tp 2 or more"),
        (f"{LLAMA} --gradients fp8", '--gradients: "fp8" cannot be chosen'),
        (f"{LLAMA} --tp 7", "tp 7 does not divide the 64 attention heads of llama-2-70b; write 4 or 8"),
        (f"{LLAMA} --tp 4 --dp 1", "256xh100 has 256; write --dp 64"),
        (f"{LLAMA} --tp 128", "tp 128 does not divide the 64 attention heads of llama-2-70b; write 32 or 64"),
        (f"{LLAMA} --pp 128", "--pp 128 are more stages than the 80 layers of llama-2-70b; write --pp 80 or less"),
        (LLAMA, "GiB on each h100, which has 80 GiB; write "),
        (f"{LLAMA} --batch 100", "--batch is 100, no multiple of --dp 256"),
        (f"{LLAMA} --zero 4", "zero is 4; write 0, 1, 2 or 3"),
        (f"{LLAMA} --recomputation some", '--recomputation: "some" cannot be chosen; known: '),
        (f"{LLAMA} --network-bandwidth 400Gb/s", 'write "400 Gbit/s" (bits) or "400 GB/s" (bytes)'),
        (f"{LLAMA} --devices 8", "add --search, --by or --budget"),
        ("estimate --model llama-70b --tokens 1T", "there is no --cluster; write --cluster 2048xh100, or --by or"),
        (f"{LLAMA} --start 2027-01-01", "--start is of a search for machines; add --by or --budget"),
        (f"{LLAMA} --by 2027-02-30", '--by is "2027-02-30", no day; write one as in 2027-03-01'),
        (f"{LLAMA} --budget 0", "--budget is 0; write more than 0"),
        (f"{LLAMA} --budget 1M --search", "--search is of one machine, and --by and --budget find machines"),
        (
            f"{LLAMA} --budget 1M --sites 4 --site-bandwidth 1GB/s",
            "--sites is of one machine, and --by and --budget find",
        ),
        (f"{LLAMA} --budget 1M --import none.sh", "--import is of one machine, and --by and --budget find machines"),
        (f"{LLAMA} --budget 1M --accelerators a100", "--accelerators are tried where there is no --cluster"),
        (f"{LLAMA} --budget 1k", "no machine of up to 256 devices trains it for $1,000"),
        (
            f"{LLAMA.replace('--cluster 256xh100 ', '')} --budget 1M --accelerators h1",
            '--accelerators: unknown accelerator "h1"',
        ),
        (f"{PLANNED} --price 2", "leave it out to compare several"),
        (f"{LLAMA} --tp 8 --pp 4 --sites 4", "write their --site-bandwidth 10 Gbit/s"),
        (f"{LLAMA} --tp 8 --pp 4 --local-steps 4", "without --sites there are no links between sites"),
        (
            f"{LLAMA} --tp 8 --pp 4 --sites 3 --site-bandwidth 1GB/s",
            "3 sites do not divide the 8 replicas; write another --sites, or",
        ),
        (
            "estimate --model llama-3-8b --cluster 577xgb200 --tokens 1T",
            "--cluster: 577 devices fill hosts of 1 alike, and a host of gb200 has room for 72; write 576 or 580",
        ),
        (f"{LLAMA} --market spots", '--market: "spots" cannot be chosen'),
        (f"{LLAMA} --preemption 1h", "--preemption is of spot; write --market spot, or leave it out"),
        (f"{LLAMA} --tp 8 --pp 4 --calibrate none.csv", "there is no file none.csv; write a table of steps, a trace"),
        (f"{LLAMA} --import none.sh", "there is no file none.sh; write one of Megatron-LM, torchtitan or DeepSpeed"),
        (f"{LLAMA} --tp 8 --pp 4 --export deepspeed", "DeepSpeed's file has no option for --pp 4; export to megatron"),
        (f"{LLAMA} --top 4", "--top is of a search; add --search"),
        (f"{LLAMA} --search --devices 8,a", '--devices: "a" is no whole number'),
        (f"{LLAMA} --search --price 2 --accelerators a100", "leave it out to compare several"),
        (f"{LLAMA} --search --batch 0", "--batch is 0; write 1 or more"),
        (f"{LLAMA} --search --tp 3", "--tp 3 cannot be had from 256 devices"),
        (f"{LLAMA} --batch 0", "--batch is 0, no multiple"),
        (f"{LLAMA} --micro-batch 0", "--micro-batch is 0; write 1 or more"),
        (f"{LLAMA} --network-bandwidth 0GB/s", "write"),
        (LLAMA.replace("300B", "0") + " --tp 8 --pp 4", "tokens is 0; write more than 0"),
        (f"{LLAMA} --search --top 0", "--top is 0; write 1 or more"),
        (f"{LLAMA} --software megatrn-core", 'did you mean "megatron-core"?'),
        (f"{LLAMA} --year 2022", "--year chooses among programs; write --software auto, or leave it out"),
        (f"{LLAMA} --software auto --year 2018", "--year is 2018, before h100; write 2022 or later"),
        (
            "estimate --model llama-3-8b --cluster 64xtpu-v5p --tokens 1B --software auto --year 2024",
            "--year has no effect on tpu-v5p; leave it out",
        ),
        (f"{LLAMA} --tp 8 --pp 4 --capacity-factor 1.5", "--capacity-factor is of experts, and there are none"),
        (
            "estimate --model llama-3-8b --cluster 64xh100 --tokens 1B --shard 1",
            "write --recomputation partial, --recomputed-layers 27 and leave --shard out",
        ),
        (
            "estimate --model llama-3-8b --cluster 64xh100 --tokens 1B --recomputation selective --recomputed-layers 4",
            "--recomputation has no effect on llama-3-8b",
        ),
        (f"{LLAMA} --pue 0.9", "--pue is 0.9; write 1 or more"),
        ("estimate --model lama-70b --cluster 8xh100 --tokens 1T", 'unknown model "lama-70b"'),
        ("estimate --model llama-70b --cluster 8xh10 --tokens 1T", 'unknown accelerator "h10"'),
        ("estimate --model llama-70b --cluster 12xh100 --tokens 1T", "do not fill hosts of 8; write 8 or 16"),
        ("estimate --model llama-70b --cluster 8xh100 --tokens 1TB", 'as in "2T"'),
        (f"estimate --model {__file__} --cluster 8xh100 --tokens 1T", "is no config.json of a model; write the path"),
        (f"estimate --model {300 * 'a'} --cluster 8xh100 --tokens 1T", "unknown model"),
        ("estimate --model none/config.json --cluster 8xh100 --tokens 1T", "there is no model file none/config.json"),
        (f"{EIGHT} --search --no-offload", "llama-2-70b fits into the memory of 8xh100"),
        ("estimate --model resnet50 --cluster 8xv100 --tokens 1M", 'did you mean "fp16"?'),
        ("estimate --model llama-70b --cluster 0xh100 --tokens 1T", "--cluster: a cluster needs at least one device"),
        (
            f"{SIXTY_FOUR} --batch 512 --search --micro-batch 7",
            "no multiple of --dp 1 x --micro-batch 7; write 511 or 518",
        ),
        (
            "estimate --model llama-70b --cluster 1016xh100 --tokens 1B --batch 2 --search",
            "--batch is 2, less than 1016 devices can share; write more",
        ),
        (f"{SIXTY_FOUR} --step-error 100", "--step-error is 100; write 0 to 1"),
        ("estimate --model llama-70b --cluster 8xh100 --tokens 3x", '--tokens: "3x" is not a count'),
        (f"{EIGHT} --device-mtbf 0s", "--device-mtbf is 0; write more than 0"),
        (f"{EIGHT} --price nan", "--price is nan; write a finite"),
        (f"{EIGHT} --sequence-length 0", "--sequence-length is 0; write"),
        (f"{EIGHT} --search --devices 0", "--devices is 0; write 1 or more"),
        (f"{EIGHT} --local-bandwidth 0B/s", "--local-bandwidth is 0; "),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_work(capsys: pytest.CaptureFixture[str], line: str, message: str):
    assert invoke(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plesio: error: ")
    assert message in err
    assert err.count("\n") == 1
