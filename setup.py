"""What pyproject.toml cannot say: a wheel carries copies of small files of the project (`settings.project_file`)."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = ("data/checks", "data/published", "data/words", "data/sources.toml")


class WithProjectFiles(build_py):
    """Copy the files into the package as it is built. An editable installation reads them where they are."""

    def run(self) -> None:
        super().run()
        for name in () if self.editable_mode else CARRIED:
            target = Path(self.build_lib, "qgcam_lib", "project", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if Path(name).is_dir():
                shutil.copytree(name, target, dirs_exist_ok=True)
            else:
                shutil.copy2(name, target)


setup(cmdclass={"build_py": WithProjectFiles})
