"""Take docs/report.png and docs/board.png: the report of the embedded example, and the board of measured runs.

python docs/make_screenshots.py            (needs playwright and Chromium)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

HERE = Path(__file__).parent
SCALERL = (sys.executable, "-m", "scalerl")
REPORT, BOARD = ViewportSize(width=1160, height=900), ViewportSize(width=1280, height=960)


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for command in (
            ("example", "--out", f"{folder}/example"),
            ("report", f"{folder}/example/runs.csv", "--out", folder),
        ):
            subprocess.run((*SCALERL, *command), check=True, stdout=subprocess.DEVNULL)
        tab = browser.new_page(viewport=REPORT)
        tab.goto((Path(folder) / "report.html").as_uri())
        tab.wait_for_selector("svg circle")
        save(tab.screenshot(), HERE / "report.png")

        watching = (*SCALERL, "watch", str(HERE / "results/first_curves"), "--no-open", "--port", "0")
        with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as board:
            assert board.stdout
            link = next(found[0] for line in board.stdout if (found := re.search(r"http://\S+", line)))
            tab = browser.new_page(viewport=BOARD)
            tab.goto(link)
            tab.get_by_text("scalerl-seed0").first.click()
            tab.wait_for_selector("figure[data-key^='curves/'] circle")
            tab.wait_for_timeout(2000)
            save(tab.screenshot(), HERE / "board.png")
            board.terminate()
        browser.close()


def save(content: bytes, target: Path) -> None:
    """Write a picture with 256 colours, which takes a third of the space."""
    target.write_bytes(content)
    with Image.open(target) as picture:
        picture.convert("RGB").quantize(256).save(target, optimize=True)


if __name__ == "__main__":
    main()
