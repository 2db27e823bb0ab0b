# The engine: which notebooks run with which parameters, and what gathers them.
#
#   snakemake                                     everything on two cores (profiles/default)
#   snakemake -n                                  what would be done
#                                                 and outputs/gathered/index.html, the report over them
#   snakemake --config data=/path weights=official device=cuda limit=0       the whole real Table 1
#   snakemake --config parameters='{limit: 50}'   any other parameters for all runs; their results get other ids
#   snakemake --config only=q_groundcam_table1    one notebook and what it needs
#   snakemake --config models=blip-base,albef-amc splits=test,testA           a part of Table 1
#   snakemake --config shards=8                   every run that asks a model about pictures in eight parts
#   snakemake --workflow-profile profiles/slurm   one Slurm job a run, or a shard (page "On a cluster")
#
# A run's folder is named after a hash of all that decides its result. The hash is known before the run, so it is part of
# the paths below: a changed notebook, parameter, module, annotation or weight asks for other files, and Snakemake makes
# just those. The miniworld is part of a hash by its recipe, so nothing is drawn to plan: drawing is a job like any other.
#
# Planning takes half a minute of processor time. The main process does it once and leaves what the rules need in
# .snakemake/engine.json; the processes that Snakemake starts for its jobs, here or on a cluster, read that.
import json
import os
import sys
from pathlib import Path
from shlex import quote

from snakemake.exceptions import WorkflowError

# notebook -> the notebook whose runs it gathers: it waits for them and gets their ids as its parameter `runs`; those of
# the same name where there are any (a split), else all
GATHERS = {"q_groundcam_table1": "q_groundcam", "tricd_analysis": "tricd_detection"}
TABLE1 = "q_groundcam_table1"


def runs_of(told):
    """notebook in nbs/papers -> name of the run -> parameters that differ from the notebook's own defaults."""
    from qgcam_lib.data.tricd.files import tricd_splits
    from qgcam_lib.papers.probes.data import probe_runs
    from qgcam_lib.papers.q_groundcam.splits import SPLITS, TABLE1_MODELS, table1_runs
    from qgcam_lib.report.claims import why_not_runnable

    DATA, GIVEN = told.data, told.given  # no data: the miniworld

    # Models whose mini is not trained yet are left out here, unless they are asked for; Table 1 says so in their rows.
    MODELS = told.models or [model for model in TABLE1_MODELS
                             if not why_not_runnable(model, str(GIVEN.get("weights", "mini")))]
    GRID = {name: given for name, given in table1_runs(DATA, models=MODELS).items()
            if given["split"] in (told.splits or [given["split"]])}
    for name, given in GRID.items():
        # The centre guess and the check of the files depend on the split alone, so one run of a split does both. The
        # untrained twin says what the shape of a network does; one split is enough for that.
        is_first = given["model"] == MODELS[0]
        twin = ["untrained"] if name.startswith(SPLITS[0].key) else []
        given |= {"verify": is_first, "baselines": ["centre"] * is_first + twin}
        if given["model"] == "albef-amc" and GIVEN.get("weights") == "official" and given["split"] in ("testA", "testB"):
            given["checkpoint"] = "best-refcoco"  # the paper's section 6: best-flickr for phrases, best-refcoco for RefCOCO+

    # TRICD: the splits that the data folder has; of the miniworld 250 of the 668 groups, which is enough to see the story.
    # The published detectors and answerers where those weights are asked for.
    TRICD = {split: {"dataset": DATA, "split": split} for split in tricd_splits(DATA)} if DATA else {"test": {"limit": 250}}
    PUBLISHED = GIVEN.get("weights") == "official"
    DETECTORS = {"models": ["mdetr-enb5", "owl-vit-l14", "owlv2-b16", "grounding-dino-base"]} if PUBLISHED else {}
    ANSWERERS = {"models": ["blip-vqa", "albef-vqa", "vilt-vqa"]} if PUBLISHED else {}

    # One line a notebook.
    return {
        "q_groundcam": GRID,
        "q_groundcam_table1": {"all": {"data": DATA, "models": list(told.models or TABLE1_MODELS)}},
        "q_groundcam_audit": {"test": {"dataset": next(iter(table1_runs(DATA).values()))["dataset"]}},
        "amc_recipe": {} if DATA else {"miniworld": {}},
        "tricd_audit": {"drawn": {}},
        "tricd_detection": {split: given | DETECTORS for split, given in TRICD.items()},
        "tricd_analysis": {split: {"dataset": DATA, "split": split} for split in TRICD},
        "tricd_vqa": {split: given | ANSWERERS for split, given in TRICD.items()},
        **probe_runs(DATA, published_weights=PUBLISHED),
        "relcomp_finetune": {} if DATA else {"miniworld": {}},
        "probes_audit": {} if DATA else {"miniworld": {}},
        "ref_adv_audit": {} if DATA else {"miniworld": {}},
        "ref_adv_evaluate": {} if DATA else {"miniworld": {}},
        "ref_adv_train": {} if DATA else {"study": {}},
    }


def texts(given, *more):
    """Parameters as options of `qgcam run`."""
    found = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    return " ".join([f"-p {quote(name)} {quote(text)}" for name, text in found.items()] + [*more])


def planned():
    """What the rules need: of every run its folder, id, options, rank, shards and what it waits for; and the recipes of
    generated data sets."""
    from qgcam_lib.errors import DiskError, ParameterError, RunError
    from qgcam_lib.papers.q_groundcam.splits import SPLITS
    from qgcam_lib.report.claims import why_not_runnable
    from qgcam_lib.runs.config import check_config
    from qgcam_lib.runs.config import computes, engine_path, hold_engine
    from qgcam_lib.runs.inputs import recipes
    from qgcam_lib.runs.parameters import read_parameters
    from qgcam_lib.runs.runner import asks, plan_run
    from qgcam_lib.runs.shards import read_plan
    from qgcam_lib.settings import settings
    from qgcam_lib.storage.files import write_json

    known = {file.stem: read_parameters(file) for file in sorted(Path("nbs/papers").glob("*.ipynb"))
             if not file.stem.startswith("benchmarks")}  # which `make bench` and `make bench-gpu` run
    try:
        outputs = engine_path(settings.outputs)
        engine = Path(sys.argv[0]).stem in ("snakemake", "__main__") and computes(sys.argv[1:])
        if engine:
            hold_engine()
        told = check_config(config, known, splits=dict.fromkeys(one.split for one in SPLITS), gathers=GATHERS,
                            why_not=why_not_runnable)
    except (DiskError, ParameterError, RunError) as error:
        raise WorkflowError(str(error)) from None
    runs = {notebook: some for notebook, some in runs_of(told).items() if notebook in known}
    if told.only:
        runs = {notebook: some for notebook, some in runs.items() if notebook in (told.only, GATHERS.get(told.only))}
        if not runs.get(told.only):
            raise WorkflowError(f"--config only: {told.only} has no run on this data.")

    jobs, drawn = {}, {}
    for notebook in sorted(runs, key=lambda one: one in GATHERS):
        for name, given in runs[notebook].items():
            path = f"nbs/papers/{notebook}.ipynb"
            given = given | {key: value for key, value in told.given.items() if key in known[notebook]}
            before = [f"{GATHERS[notebook]}/{other}" for other in runs.get(GATHERS.get(notebook), {})]
            before = [key for key in before if key.endswith(f"/{name}")] or before
            if notebook in GATHERS:
                given["runs"] = [jobs[key]["run_id"] for key in before]
            plan = plan_run(path, given, here=False)  # on a cluster, the device is another machine's
            made = {f"{one.key}-{one.fingerprint()[:12]}": one for one in recipes(plan.reads)}
            # The first run's scores are on the screen as soon as they are there, and Table 1 before the runs that it
            # does not need.
            rank = {TABLE1: 1, GATHERS[TABLE1]: 2}.get(notebook, 0) if jobs else 3
            for key, one in made.items():
                drawn.setdefault(key, {"name": one.name, "split": one.split or "test", "rank": rank})
                drawn[key]["rank"] = max(rank, drawn[key]["rank"])
            jobs[f"{notebook}/{name}"] = {
                "folder": f"{outputs}/gathered/{notebook}/{name}/{plan.run_id}", "run_id": plan.run_id, "rank": rank,
                "options": texts(given), "table": "--table" if rank == 3 or notebook == TABLE1 else "",
                "needs": [jobs[key]["folder"] + "/run.json" for key in before], "drawn": [*made],
                "shards": told.shards if asks(path) else 1, "plan": read_plan(plan)}
    # The run of a notebook that its file shows: the first of its line above.
    shown = [f"{notebook}/{jobs[f'{notebook}/{next(iter(some))}']['run_id']}" for notebook, some in runs.items() if some]
    found = {"outputs": outputs, "threads": told.threads, "device": str(told.given.get("device") or settings.device), "jobs": jobs,
             "drawn": drawn, "shown": shown}
    if engine:
        write_json(Path(NOTES), found)
    return found


NOTES = ".snakemake/engine.json"
PLANNED = planned() if workflow.is_main_process else json.loads(Path(NOTES).read_text(encoding="utf-8"))
OUTPUTS, JOBS = PLANNED["outputs"], PLANNED["jobs"]
BY_ID = {(key.partition("/")[0], job["run_id"]): job for key, job in JOBS.items()}
FOLDER = OUTPUTS + "/gathered/{notebook}/{name}/{run_id}"
SHARD = OUTPUTS + "/shards/{notebook}/{run_id}-{k}of{n}/run.json"

if not sys.stderr.isatty():  # in a log file, a progress bar every ten seconds is enough
    os.environ.setdefault("TQDM_MININTERVAL", "10")


def job(wildcards):
    """What is planned for a run, or for the run of a shard."""
    return BY_ID[wildcards.notebook, wildcards.run_id]


def changed(wildcards):
    """How the files of a finished run differ from its record; such a run is asked for again, and `qgcam run` says why."""
    if not workflow.is_main_process:
        return ""
    from qgcam_lib.runs.record import changed_outputs

    return "; ".join(changed_outputs(f"{OUTPUTS}/{wildcards.notebook}/{wildcards.run_id}"))


def drawn(wildcards):
    """The notes of the generated data sets that a run reads."""
    return [f".snakemake/drawn/{name}" for name in job(wildcards)["drawn"]]


def shards(wildcards):
    """The records of a run's shards; none where it is not shared out."""
    n = job(wildcards)["shards"]
    return [SHARD.format(notebook=wildcards.notebook, run_id=wildcards.run_id, k=k + 1, n=n) for k in range(n)] * (n > 1)


def parts(wildcards):
    """The option of `qgcam run` by which a run takes what its shards have."""
    n = job(wildcards)["shards"]
    return f"--shard gather/{n}" if n > 1 else ""


wildcard_constraints:
    notebook="[a-z0-9_]+",
    name="[a-z0-9_]+",
    run_id="[0-9a-f]{12}",
    k="[0-9]+",
    n="[0-9]+",


rule gather:
    """The report: a front page, a page a notebook; the pages of the runs lie beside their results."""
    input:
        OUTPUTS + "/gathered/shown.txt",
        records=[one["folder"] + "/run.json" for one in JOBS.values()],
    output:
        OUTPUTS + "/gathered/index.html",
    localrule: True
    shell:
        "qgcam gather {input.records:q} --to {output:q}"


rule shown:
    """The runs that the notebooks show, for `qgcam reference` (`make reproduce`) and `qgcam papers` (`make papers`)."""
    output:
        OUTPUTS + "/gathered/shown.txt",
    params:
        runs=PLANNED["shown"],
    localrule: True
    shell:
        "printf '%s\\n' {params.runs} > {output:q}"


rule draw:
    """One data set of the miniworld, or what is missing of it."""
    output:
        touch(".snakemake/drawn/{recipe}"),
    params:
        name=lambda wildcards: PLANNED["drawn"][wildcards.recipe]["name"],
        split=lambda wildcards: PLANNED["drawn"][wildcards.recipe]["split"],
    priority: lambda wildcards: PLANNED["drawn"][wildcards.recipe]["rank"]
    shell:
        "qgcam data draw {params.name:q} --split {params.split:q}"


def memory(wildcards, attempt):
    """MB of a job: half as much again as `qgcam plan` found for this run, else 6,000; twice as much at each attempt."""
    return int(1.5 * (job(wildcards)["plan"].get("memory_mb") or 4000)) * 2 ** (attempt - 1)


def minutes(wildcards, attempt):
    """Of a job: ten, and twice what `qgcam plan` says; without a plan two hours. Twice as long at each attempt."""
    plan, n = job(wildcards)["plan"], job(wildcards)["shards"]
    asking = plan.get("asking", 0) / n if n == 1 or hasattr(wildcards, "k") else 0  # who gathers asks for nothing
    return int(10 + 2 * (plan["fixed"] + asking) / 60 if plan else 120) * 2 ** (attempt - 1)


# One GPU each on a GPU.
JOB = {"mem_mb": memory, "runtime": minutes}
if PLANNED["device"].startswith("cuda"):
    JOB |= {"gres": "gpu:1", "gpu_slots": 1}


rule shard:
    """A part of what one run asks a model about pictures."""
    input:
        notebook=ancient("nbs/papers/{notebook}.ipynb"),
        runs=lambda wildcards: job(wildcards)["needs"],
        drawn=ancient(drawn),
    output:
        SHARD,
    params:
        options=lambda wildcards: job(wildcards)["options"],
    priority: lambda wildcards: job(wildcards)["rank"]
    threads: PLANNED["threads"]
    resources:
        **JOB,
    shell:
        "QGCAM_THREADS={threads} qgcam run {input.notebook:q} {params.options} --shard {wildcards.k}/{wildcards.n}"


rule run:
    """One notebook with one set of parameters, through the strict runner, and what a reader wants to see of it."""
    input:
        notebook=ancient("nbs/papers/{notebook}.ipynb"),  # its sources are in the id; what it stores does not count
        runs=lambda wildcards: job(wildcards)["needs"],
        drawn=ancient(drawn),
        shards=shards,
    output:
        record=FOLDER + "/run.json",
        page=FOLDER + "/run.html",
        figures=directory(FOLDER + "/figures"),
        tables=directory(FOLDER + "/tables"),
    params:
        options=lambda wildcards: " ".join(filter(None, (job(wildcards)["options"], job(wildcards)["table"]))),
        parts=parts,
        folder=FOLDER,
        changed=changed,
    priority: lambda wildcards: job(wildcards)["rank"]
    threads: PLANNED["threads"]
    resources:
        **JOB,
    shell:
        "QGCAM_THREADS={threads} qgcam run {input.notebook:q} {params.options} {params.parts} --gather {params.folder:q}"
