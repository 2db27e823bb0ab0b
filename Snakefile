# The engine: which notebooks run with which parameters, and what gathers them.
#
#   snakemake                                     everything on two cores (profiles/default)
#   snakemake -n                                  what would be done
#   snakemake --report outputs/report.html        every figure and table, with the run it came from
#   snakemake --config parameters='{limit: 50}'   all runs with other parameters; their results get other ids
#   snakemake --workflow-profile profiles/slurm   one Slurm job a run
#
# A run's folder is named after a hash of all that decides its result. The hash is known before the run, so it is part of
# the paths below: a changed notebook, parameter or library asks for other files, and Snakemake makes just those.
import json
import re
import sys
from pathlib import Path
from shlex import quote

from qgcam_lib.runs import plan_run
from qgcam_lib.settings import settings

# notebook in nbs/papers -> name of the run -> parameters that differ from the notebook's own defaults
RUNS = {
    "q_groundcam": {"miniworld": {}},
}

OUTPUTS = Path(os.path.relpath(settings.outputs)).as_posix()
FOLDER = OUTPUTS + "/gathered/{notebook}/{name}/{run_id}"
PARAMETERS = {
    (notebook, name): given | config.get("parameters", {})
    for notebook, runs in RUNS.items()
    for name, given in runs.items()
}
FOLDERS = [
    FOLDER.format(notebook=notebook, name=name, run_id=plan_run(f"nbs/papers/{notebook}.ipynb", given).run_id)
    for (notebook, name), given in PARAMETERS.items()
]

if not sys.stderr.isatty():  # in a log file, a progress bar every ten seconds is enough
    os.environ.setdefault("TQDM_MININTERVAL", "10")


def options(wildcards):
    """The parameters of a run as options of `qgcam run`."""
    given = PARAMETERS[wildcards.notebook, wildcards.name]
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    return " ".join(f"-p {quote(name)} {quote(text)}" for name, text in texts.items())


def about(wildcards, path):
    """Caption of a result and the run it came from, as reStructuredText; used by profiles/report/*.rst."""
    from qgcam_lib.gather import run_line

    record = json.loads(Path(FOLDER.format(**dict(wildcards.items())), "run.json").read_text())
    caption = next((item["caption"] for item in record["outputs"] if item["path"] == path), "")
    return re.sub(r"([\\*_`|<>\[\]])", r"\\\1", f"{caption}\n\n{run_line(record)}")


config["about"] = about


report: "profiles/report/overview.rst"


wildcard_constraints:
    notebook="[a-z0-9_]+",
    name="[a-z0-9_]+",
    run_id="[0-9a-f]{12}",


rule gather:
    """One page with a row for each run."""
    input:
        expand("{folder}/run.json", folder=FOLDERS),
    output:
        report(OUTPUTS + "/gathered/overview.html", category="Runs", labels={"notebook": "all", "name": "", "run": ""}),
    localrule: True
    shell:
        "qgcam gather {input} --to {output}"


rule miniworld:
    """The default data set, rendered: 2,000 test scenes in the layout of Flickr30k Entities."""
    output:
        touch(OUTPUTS + "/gathered/miniworld.made"),
    localrule: True
    shell:
        "python -c 'from qgcam_lib.miniworld import ensure; from qgcam_lib.settings import settings; "
        'ensure(settings.data_root / "miniworld")\''


rule run:
    """One notebook with one set of parameters, through the strict runner, and what a reader wants to see of it."""
    input:
        notebook="nbs/papers/{notebook}.ipynb",
        miniworld=rules.miniworld.output,
    output:
        record=FOLDER + "/run.json",
        page=report(
            FOLDER + "/run.html",
            caption="profiles/report/run.rst",
            category="Runs",
            labels={"notebook": "{notebook}", "name": "{name}", "run": "{run_id}"},
        ),
        figures=report(
            directory(FOLDER + "/figures"),
            patterns=["{figure}.png"],
            caption="profiles/report/figure.rst",
            category="{notebook}",
            subcategory="Figures",
            labels={"figure": "{figure}", "name": "{name}", "run": "{run_id}"},
        ),
        tables=report(
            directory(FOLDER + "/tables"),
            patterns=["{table}.html"],
            caption="profiles/report/table.rst",
            category="{notebook}",
            subcategory="Tables",
            labels={"table": "{table}", "name": "{name}", "run": "{run_id}"},
        ),
    params:
        options=options,
        folder=FOLDER,
    threads: 2
    resources:
        mem_mb=6000,
        runtime=120,
    shell:
        "QGCAM_THREADS={threads} qgcam run {input.notebook} {params.options} --gather {params.folder}"
