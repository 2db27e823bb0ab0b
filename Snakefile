# The engine: which notebooks run with which parameters, and what gathers them.
#
#   snakemake                                     everything on two cores (profiles/default)
#   snakemake -n                                  what would be done
#                                                 and outputs/gathered/index.html, the report over them
#   snakemake --config data=/path weights=official device=cuda limit=0       the whole real Table 1
#   snakemake --config parameters='{limit: 50}'   any other parameters for all runs; their results get other ids
#   snakemake --config only=q_groundcam_table1    one notebook and what it needs
#   snakemake --config models=blip-base,albef-amc splits=test,testA           a part of Table 1
#   snakemake --workflow-profile profiles/slurm   one Slurm job a run
#
# A run's folder is named after a hash of all that decides its result. The hash is known before the run, so it is part of
# the paths below: a changed notebook, parameter, module, annotation or weight asks for other files, and Snakemake makes
# just those. The miniworld is part of a hash by its recipe, so nothing is drawn to plan: drawing is a job like any other.
import json
import os
import sys
from pathlib import Path
from shlex import quote

from snakemake.exceptions import WorkflowError

from qgcam_lib.data.tricd.files import tricd_splits
from qgcam_lib.errors import DiskError, ParameterError, RunError
from qgcam_lib.papers.probes.data import probe_runs
from qgcam_lib.runs.config import check_config
from qgcam_lib.runs.engine import computes, engine_path, hold_engine
from qgcam_lib.runs.inputs import recipes
from qgcam_lib.runs.parameters import read_parameters
from qgcam_lib.papers.q_groundcam.splits import SPLITS, TABLE1_MODELS, table1_runs
from qgcam_lib.report.cautions import why_not_runnable
from qgcam_lib.runs.record import changed_outputs
from qgcam_lib.runs.runner import plan_run
from qgcam_lib.settings import settings

# notebook -> the notebook whose runs it gathers: it waits for them and gets their ids as its parameter `runs`; those of
# the same name where there are any (a split), else all
GATHERS = {"q_groundcam_table1": "q_groundcam", "tricd_analysis": "tricd_detection"}
PARAMETERS_OF = {file.stem: read_parameters(file) for file in sorted(Path("nbs/papers").glob("*.ipynb"))
                 if file.stem != "benchmarks"}  # which `make bench` runs
try:
    OUTPUTS = engine_path(settings.outputs)
    if workflow.is_main_process and Path(sys.argv[0]).stem in ("snakemake", "__main__") and computes(sys.argv[1:]):
        hold_engine()
    TOLD = check_config(config, PARAMETERS_OF, splits=dict.fromkeys(one.split for one in SPLITS), gathers=GATHERS,
                        why_not=why_not_runnable)
except (DiskError, ParameterError, RunError) as error:
    raise WorkflowError(str(error)) from None
DATA, GIVEN = TOLD.data, TOLD.given  # no data: the miniworld

# Models whose mini is not trained yet are left out here, unless they are asked for; Table 1 says so in their rows.
MODELS = TOLD.models or [model for model in TABLE1_MODELS
                         if not why_not_runnable(model, str(GIVEN.get("weights", "mini")))]
GRID = {name: given for name, given in table1_runs(DATA, models=MODELS).items()
        if given["split"] in (TOLD.splits or [given["split"]])}
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

# notebook in nbs/papers -> name of the run -> parameters that differ from the notebook's own defaults. One line a notebook.
RUNS = {
    "q_groundcam": GRID,
    "q_groundcam_table1": {"all": {"data": DATA, "models": list(TOLD.models or TABLE1_MODELS)}},
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


def gathered(notebook, name):
    """The runs (notebook, name) that a run gathers."""
    runs = [(GATHERS[notebook], other) for other in RUNS.get(GATHERS.get(notebook), {})]
    return [key for key in runs if key[1] == name] or runs


FOLDER = OUTPUTS + "/gathered/{notebook}/{name}/{run_id}"
RUNS = {notebook: runs for notebook, runs in RUNS.items() if notebook in PARAMETERS_OF}
if TOLD.only:
    RUNS = {notebook: runs for notebook, runs in RUNS.items() if notebook in (TOLD.only, GATHERS.get(TOLD.only))}
    if not RUNS.get(TOLD.only):
        raise WorkflowError(f"--config only: {TOLD.only} has no run on this data.")
KNOWN = {notebook: PARAMETERS_OF[notebook] for notebook in RUNS}
PARAMETERS, PLANS = {}, {}
for notebook in sorted(RUNS, key=lambda one: one in GATHERS):
    for name, given in RUNS[notebook].items():
        given = given | {k: v for k, v in GIVEN.items() if k in KNOWN[notebook]}
        if notebook in GATHERS:
            given["runs"] = [PLANS[key].run_id for key in gathered(notebook, name)]
        PARAMETERS[notebook, name] = given
        PLANS[notebook, name] = plan_run(f"nbs/papers/{notebook}.ipynb", given)
DRAWN = {key: {f"{one.key}-{one.fingerprint()[:12]}": one for one in recipes(plan.reads)} for key, plan in PLANS.items()}
RECIPES = {name: one for drawn in DRAWN.values() for name, one in drawn.items()}
FOLDERS = {key: FOLDER.format(notebook=key[0], name=key[1], run_id=plan.run_id) for key, plan in PLANS.items()}

# The first run's scores are on the screen as soon as they are there, and Table 1 before the runs that it does not need.
FIRST, TABLE1 = next(iter(PLANS), None), "q_groundcam_table1"
SHOWN = {key for key in PLANS if key == FIRST or key[0] == TABLE1}

# The run of a notebook that its file shows: the first of its line above.
STORED = [(notebook, next(iter(runs))) for notebook, runs in RUNS.items() if runs]

if not sys.stderr.isatty():  # in a log file, a progress bar every ten seconds is enough
    os.environ.setdefault("TQDM_MININTERVAL", "10")


def options(wildcards):
    """The parameters of a run as options of `qgcam run`."""
    given = PARAMETERS[wildcards.notebook, wildcards.name]
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    show = " --table" if (wildcards.notebook, wildcards.name) in SHOWN else ""
    return " ".join(f"-p {quote(name)} {quote(text)}" for name, text in texts.items()) + show


def changed(wildcards):
    """How the files of a finished run differ from its record; such a run is asked for again, and `qgcam run` says why."""
    return "; ".join(changed_outputs(PLANS[wildcards.notebook, wildcards.name].folder))


def rank(notebook, name):
    """How urgent a run is: the first run, the runs behind Table 1, Table 1, the rest."""
    return 3 if (notebook, name) == FIRST else {TABLE1: 1, GATHERS[TABLE1]: 2}.get(notebook, 0)


def needed(wildcards):
    """The records of the runs that a notebook gathers."""
    return [FOLDERS[key] + "/run.json" for key in gathered(wildcards.notebook, wildcards.name)]


def drawn(wildcards):
    """The notes of the generated data sets that a run reads."""
    return [f".snakemake/drawn/{name}" for name in DRAWN[wildcards.notebook, wildcards.name]]


wildcard_constraints:
    notebook="[a-z0-9_]+",
    name="[a-z0-9_]+",
    run_id="[0-9a-f]{12}",


rule gather:
    """The report: a front page, a page a notebook; the pages of the runs lie beside their results."""
    input:
        OUTPUTS + "/gathered/shown.txt",
        records=expand("{folder}/run.json", folder=FOLDERS.values()),
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
        runs=[f"{notebook}/{PLANS[notebook, name].run_id}" for notebook, name in STORED],
    localrule: True
    shell:
        "printf '%s\\n' {params.runs} > {output:q}"


rule draw:
    """One data set of the miniworld, or what is missing of it."""
    output:
        touch(".snakemake/drawn/{recipe}"),
    params:
        name=lambda wildcards: RECIPES[wildcards.recipe].name,
        split=lambda wildcards: RECIPES[wildcards.recipe].split or "test",
    priority: lambda wildcards: max(rank(*key) for key, drawn in DRAWN.items() if wildcards.recipe in drawn)
    shell:
        "qgcam data draw {params.name:q} --split {params.split:q}"


rule run:
    """One notebook with one set of parameters, through the strict runner, and what a reader wants to see of it."""
    input:
        notebook=ancient("nbs/papers/{notebook}.ipynb"),  # its sources are in the id; what it stores does not count
        runs=needed,
        drawn=ancient(drawn),
    output:
        record=FOLDER + "/run.json",
        page=FOLDER + "/run.html",
        figures=directory(FOLDER + "/figures"),
        tables=directory(FOLDER + "/tables"),
    params:
        options=options,
        folder=FOLDER,
        changed=changed,
    priority: lambda wildcards: rank(wildcards.notebook, wildcards.name)
    threads: lambda wildcards: workflow.cores if str(GIVEN.get("device", "cpu")) != "cpu" else TOLD.threads
    resources:
        mem_mb=6000,
        runtime=120,
    shell:
        "QGCAM_THREADS={threads} qgcam run {input.notebook:q} {params.options} --gather {params.folder:q}"
