"""`python tests/fuzz`: many inputs a target, a table at the end, and the smallest input of each fault in a folder.

N: inputs a target. SEED: 0 is CI's. TARGETS: words, with commas, of which a target's name must have one; empty: all;
-word: none of these. OUT: the folder.
"""

import faulthandler
import os
import sys
import time
from pathlib import Path

from harness import all_targets, as_test, fuzz, write_files

N, SEED = int(os.environ.get("N") or 10_000), int(os.environ.get("SEED") or 0)
WANTED = [word for word in os.environ.get("TARGETS", "").split(",") if word]
OUT = Path(os.environ.get("OUT") or "outputs/fuzz").resolve()


def main() -> int:
    yes, no = [one for one in WANTED if one[0] != "-"], [one[1:] for one in WANTED if one[0] == "-"]
    targets = [one for name, one in all_targets().items() if (not yes or any(word in name for word in yes))
               and not any(word in name for word in no)]
    reports, faulted = [], []
    for place, target in enumerate(targets, 1):
        last = [0.0]

        def tell(report, target=target, place=place, last=last):
            faulthandler.dump_traceback_later(120, exit=True)  # stuck in code that no signal reaches
            if time.monotonic() - last[0] > 5:
                last[0] = time.monotonic()
                print(
                    f"\r{place}/{len(targets)} {target.name}: {report.inputs:,} of {N:,}, {len(report.worst)} faults",
                    end="  ",
                    file=sys.stderr,
                )

        report = fuzz(target, N, SEED, tell)
        faulthandler.cancel_dump_traceback_later()
        reports.append(report)
        print(
            f"\r{target.name}: {report.inputs:,} inputs, {report.seconds:.0f} s, {len(report.worst)} faults",
            file=sys.stderr,
        )
        for number, (fault, files) in enumerate(sorted(report.worst.items(), key=lambda one: -report.counts[one[0]])):
            folder = OUT / target.name.replace(" ", "-") / str(number)
            write_files(files, folder)
            print(
                f"\n{target.name}: {fault.what} at {fault.where}, {report.counts[fault]:,} inputs; "
                f"the smallest lies in {folder}\n"
                f"{fault.text[-700:]}\n    {as_test(target, files)[:1500]}",
                flush=True,
            )
            faulted.append(fault)
    print(f"\n{'target':32}{'inputs':>8}{'seconds':>9}{'inputs at fault':>17}{'faults':>8}")
    for one in reports:
        print(f"{one.target:32}{one.inputs:8,}{one.seconds:9.1f}{one.failed:17,}{len(one.worst):8}")
    print(
        f"{'all':32}{sum(one.inputs for one in reports):8,}{sum(one.seconds for one in reports):9.1f}"
        f"{sum(one.failed for one in reports):17,}{len(faulted):8}   seed {SEED}"
    )
    return bool(faulted)


if __name__ == "__main__":
    sys.exit(main())
