"""Makes docs/report.png from the newest execution, with a real browser: `make demo`, then `make pictures`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "report.png"
PROGRAM = (sys.executable, "-m", "pg_pipeline")
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1180,1000")


def main() -> None:
    listed = subprocess.run([*PROGRAM, "executions", "--limit", "1", "--json"], capture_output=True, check=True)
    found = json.loads(listed.stdout)
    if not found:
        sys.exit("There is no execution to show: run make demo first.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([*PROGRAM, "report", found[0]["execution"], "--output", str(page)], check=True)
        command = [*BROWSER, f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


main()
