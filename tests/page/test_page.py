"""The status page in a real browser: it shows what the document says, whatever the names in it are.

usage: test_page.py [--url URL] [PATTERN ...]      CHROMIUM names the program; `run` does all that
--url: a plugin's page with its current content, instead of the fixtures
"""

import argparse
import faulthandler
import json
import os
import pathlib
import sys
import unittest

import fixtures
import shown
from axe_playwright_python.sync_playwright import Axe
from browser import PHONE, WIDE, Browser
from playwright.sync_api import expect
from server import ROOT, Plugin

FRESH = "#when:not(.old):text('Updated')"
TIMEOUT_S = 450  # Everything takes one minute, on busy cores three.
SHOT = {"width": 1240, "height": 720}
SHOTS_MAX_BYTES = 150 * 1024
options = None
browser = None


def setUpModule():
    global browser
    browser = Browser()


def tearDownModule():
    browser.close()


class PageCase(unittest.TestCase):
    def setUp(self):
        self.pages = []

    def tearDown(self):
        for page in self.pages:
            self.assertEqual(page.trouble + page.evaluate("() => window.violations"), [])
            page.context.close()

    def open(self, url, **more):
        """The page, drawn once and then not refreshed, and the document that it has drawn."""
        page = browser.open(url, **more)
        self.pages.append(page)
        with page.expect_response("**/status.json") as answer:
            page.goto(url)
        page.locator(FRESH).wait_for()
        page.route("**/status.json", lambda route: route.abort())
        return page, answer.value.json()

    def unfold(self, page):
        """Expands all lists, and those inside them."""
        while page.evaluate("""() => Promise.all(
            [...document.querySelectorAll('details:not([open])')]
              .filter((list) => !list.hidden && list.checkVisibility())
              .map((list) => new Promise((drawn) => {
                list.addEventListener('toggle', drawn, {once: true});
                list.open = true;
              }))).then((opened) => opened.length)"""):
            pass

    def check_accessible(self, page):
        found = Axe().run(page).response["violations"]
        text = "\n".join(f"{v['id']}: {v['help']}: {[n['html'][:200] for n in v['nodes'][:3]]}"
                         for v in found)
        self.assertEqual(found, [], text)

    def check_width(self, page):
        self.assertLessEqual(page.evaluate("() => document.documentElement.scrollWidth"),
                             page.viewport_size["width"])


class AnyPluginTest(PageCase):
    """Goal: holds for every document. Method: the fixtures', or the one of the plugin at --url."""

    def each(self, check):
        """Calls check(URL) for each document."""
        if options.url:
            check(options.url)
            return
        plugin = Plugin()
        self.addCleanup(plugin.close)
        for make in (fixtures.busy, fixtures.several, fixtures.empty, fixtures.no_gpu, fixtures.hostile):
            with self.subTest(make.__name__):
                plugin.document = make()
                check(plugin.url)

    def test_shows_what_the_document_says(self):
        def check(url):
            page, doc = self.open(url)
            self.unfold(page)
            shown.check(self, doc, page)

        self.each(check)

    def test_axe_finds_nothing(self):
        def check(url):
            for scheme in ("light", "dark"):
                for viewport in (WIDE, PHONE):
                    page, _ = self.open(url, scheme=scheme, viewport=viewport)
                    self.unfold(page)
                    if page.locator(".bar button").count():
                        page.locator(".bar button").first.focus()
                    self.check_accessible(page)

        self.each(check)

    def test_numbers_fit_their_cells(self):
        """Goal: none runs into the next one or out of its GPU's box, and nothing out of the page."""
        def check(url):
            for width in (1280, 1100, 900, 360):
                page, _ = self.open(url, viewport={"width": width, "height": 900})
                self.unfold(page)
                self.check_width(page)
                self.assertEqual(page.evaluate("""() => [...document.querySelectorAll('td.n')]
                    .filter((cell) => cell.scrollWidth > cell.clientWidth)
                    .map((cell) => cell.textContent)"""), [], width)

        self.each(check)

    def test_keyboard_reaches_everything(self):
        """Tab reaches each bar once, arrows reach each of its parts, and the focus is always
        visible."""
        def check(url):
            page, doc = self.open(url)
            for gpu in range(len(doc["gpus"])):
                self.walk_bar(page, page.locator(".bar").nth(gpu))
            self.walk_page(page, len(doc["gpus"]))

        self.each(check)

    def walk_bar(self, page, bar):
        buttons = bar.locator("button")
        panel = bar.locator("xpath=following-sibling::section[@class='panel']")
        self.assertEqual(bar.locator("[tabindex='0']").count(), 1)
        bar.locator("[tabindex='0']").focus()
        page.keyboard.press("Home")
        for at in range(buttons.count()):
            self.assertTrue(buttons.nth(at).evaluate("(b) => b === document.activeElement"), at)
            self.assertEqual(panel.locator(".title").text_content(),
                             buttons.nth(at).text_content())
            page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()

    def walk_page(self, page, gpus):
        page.locator(".skip").focus()
        stops = page.evaluate("""() => [...document.querySelectorAll(
            'a[href], summary, button[tabindex="0"]')].filter((n) => n.checkVisibility()).length""")
        seen = []
        for _ in range(stops):
            seen.append(page.evaluate("""() => { const n = document.activeElement;
                return [n.tagName, getComputedStyle(n).outlineStyle,
                        parseFloat(getComputedStyle(n).outlineWidth)]; }"""))
            page.keyboard.press("Tab")
        self.assertEqual(sum(tag == "BUTTON" for tag, _, _ in seen), gpus)
        for tag, style, width in seen:
            self.assertTrue(style != "none" and width >= 2, tag)

    def test_has_headings_lists_and_tables(self):
        def check(url):
            for viewport in (WIDE, PHONE):
                page, doc = self.open(url, viewport=viewport)
                self.unfold(page)
                expect(page.get_by_role("heading", level=1)).to_have_count(1)
                indices = [gpu["index"] for gpu in doc["gpus"]]  # MIG instances share the GPU's.
                for index in set(indices):
                    title = page.get_by_role("heading", level=2, name=f"GPU {index}", exact=True)
                    expect(title).to_have_count(indices.count(index))
                    bar = page.get_by_role("list", name=f"Memory of GPU {index}: ")
                    expect(bar).to_have_count(indices.count(index))
                pools = [p for g in doc["gpus"] for p in g["pools"]]
                expect(page.get_by_role("heading", level=3)).to_have_count(len(pools))
                held = [p for p in pools if p["containers"]]
                expect(page.get_by_role("table", name="Containers")).to_have_count(len(held))
                self.assertEqual(page.locator("th:not([scope])").count(), 0)

        self.each(check)


class FixtureTest(PageCase):
    def setUp(self):
        super().setUp()
        self.plugin = Plugin()
        self.plugin.document = fixtures.busy()
        self.addCleanup(self.plugin.close)

    def open_with_clock(self, **more):
        """A page whose timers the test controls, so that it need not wait."""
        page = browser.open(self.plugin.url, **more)
        self.pages.append(page)
        page.clock.install(time=fixtures.NOW_MS)
        page.clock.pause_at(fixtures.NOW_MS + 1000)
        page.goto(self.plugin.url)
        page.locator(FRESH).wait_for()
        return page

    def refresh(self, page):
        """The next refresh, until it has ended."""
        before = page.locator("#when").text_content()
        page.clock.run_for(2000)
        expect(page.locator("#when")).not_to_have_text(before)
        page.locator(FRESH).wait_for()

    def test_follows_the_document(self):
        """Goal: no element outlives what it shows. Method: twenty random successors."""
        stream = fixtures.changing()
        self.plugin.document = next(stream)
        page = self.open_with_clock()
        for _ in range(20):
            self.unfold(page)
            shown.check(self, self.plugin.document, page)
            self.plugin.document = next(stream)
            self.refresh(page)

    def test_focus_and_open_lists_outlive_a_refresh(self):
        page = self.open_with_clock()
        part = page.locator(".bar button").nth(3)
        part.focus()
        name = part.text_content()
        page.locator(".gpu > details > summary").nth(1).click()
        part.focus()
        first = self.plugin.document["gpus"][0]["pools"][0]
        first["buffers"].insert(0, fixtures.buffer("new", 5 * fixtures.GIB))
        self.refresh(page)
        self.assertEqual(page.evaluate("() => document.activeElement.textContent"), name)
        expect(page.locator(".gpu .panel .title").first).to_have_text(name)
        self.assertEqual(page.locator(".gpu > details").nth(1).get_attribute("open"), None)

    def test_focus_moves_on_when_its_part_is_gone(self):
        page = self.open_with_clock()
        page.locator(".bar button").first.focus()
        del self.plugin.document["gpus"][0]["pools"][0]
        self.refresh(page)
        self.assertTrue(page.evaluate("() => document.activeElement.matches('.bar button')"))

    def test_pods_keep_their_colours(self):
        page = self.open_with_clock()
        swatch = page.locator(".pool .swatch")
        before = {page.locator(".pool h3").nth(i).text_content(): swatch.nth(i).get_attribute(
            "class") for i in range(swatch.count())}
        self.assertEqual(len(set(before.values())), len(before))
        gone = self.plugin.document["gpus"][0]["pools"].pop(0)
        self.refresh(page)
        for i in range(swatch.count()):
            name = page.locator(".pool h3").nth(i).text_content()
            self.assertNotEqual(name, shown.pod_name(gone))
            self.assertEqual(swatch.nth(i).get_attribute("class"), before[name])

    def test_says_since_when_it_is_old_and_keeps_the_picture(self):
        for failure, why in (("status", "HTTP 503"), ("garbage", "JSON")):
            with self.subTest(failure):
                self.plugin.failure = None
                page = self.open_with_clock()
                since = page.locator("#when").text_content().removeprefix("Updated ")
                self.plugin.failure = failure
                page.clock.run_for(2000)
                banner = page.get_by_role("alert")
                expect(banner).to_contain_text(f"has not answered since {since}")
                expect(banner).to_contain_text(why)
                expect(page.locator("#when")).to_have_text(f"Outdated: from {since}")
                shown.check(self, self.plugin.document, page)
                page.clock.resume()  # axe waits, too.
                self.check_accessible(page)
                self.plugin.failure = None
                expect(banner).to_be_hidden()
                page.locator(FRESH).wait_for()

    def test_does_not_wait_for_ever(self):
        self.plugin.failure = "silence"
        page = browser.open(self.plugin.url)
        self.pages.append(page)
        page.goto(self.plugin.url)
        expect(page.get_by_role("alert")).to_contain_text("no answer in 5 s", timeout=10000)

    def test_a_hidden_tab_asks_nothing(self):
        page = self.open_with_clock()
        hide = """(hidden) => {
          Object.defineProperty(document, 'hidden', {get: () => hidden, configurable: true});
          document.dispatchEvent(new Event('visibilitychange')); }"""
        page.evaluate(hide, True)
        asked = self.plugin.asked
        page.clock.run_for(60000)
        self.assertEqual(self.plugin.asked, asked)
        with page.expect_response("**/status.json"):
            page.evaluate(hide, False)

    def test_a_pod_of_two_gpus(self):
        """Goal: it is one pod, and each of its pools says which of its GPUs it is on."""
        self.plugin.document = fixtures.several()
        page, _ = self.open(self.plugin.url)
        expect(page.locator("#totals div", has_text="Pods3")).to_have_count(1)
        pools = page.locator(".pool", has_text="chat/tensor-0")
        expect(pools).to_have_count(2)
        for number in (0, 1):
            expect(pools.nth(number)).to_contain_text(
                f"number {number} of the pod’s 2 GPUs: GPU 2, GPU 3")
        expect(page.locator(".pool", has_text="trainer-0")).to_contain_text(
            "number 1 of the pod’s 2 GPUs")
        self.assertEqual(page.locator(".pool", has_text="server-0").text_content().count("of the pod"),
                         0)
        clients = pools.nth(1).locator("table.containers tbody tr:first-child td:nth-child(2)").first
        expect(clients).to_have_text("–")
        expect(pools.nth(1)).to_contain_text("clients are counted on GPU 2")
        colours = {pools.nth(i).locator(".swatch").get_attribute("class") for i in (0, 1)}
        self.assertEqual(len(colours), 1)
        part = page.get_by_role("button", name="weights-1, chat/tensor-0: ")
        part.focus()
        expect(page.locator(".panel:not([hidden])")).to_contain_text("GPU of the pod1 of 2")

    def test_hostile_names_are_text(self):
        self.plugin.document = fixtures.hostile()
        page, _ = self.open(self.plugin.url)
        self.unfold(page)
        for part in page.locator(".bar button").all()[:20]:
            part.focus()
        self.assertIsNone(page.evaluate("() => window.hurt ?? null"))
        self.assertEqual(page.locator("img, svg, main script").count(), 0)

    def test_the_policy_holds(self):
        """Goal: if a name became markup, nothing would run and nothing would be sent."""
        page, _ = self.open(self.plugin.url)
        page.evaluate("""() => {
          const script = document.createElement('script');
          script.textContent = 'window.hurt = 1';
          document.body.append(script);
          document.body.insertAdjacentHTML('beforeend',
            '<img src="/x" onerror="window.hurt = 1"><p style="color: red"></p>'); }""")
        expect(page.locator("img")).to_have_count(1)
        violations = page.evaluate("() => window.violations.splice(0)")
        kinds = {v.split(":")[0] for v in violations}
        self.assertEqual(kinds, {"script-src-elem", "script-src-attr", "img-src", "style-src-attr"},
                         violations)
        self.assertIsNone(page.evaluate("() => window.hurt ?? null"))

    def test_motion_is_a_choice(self):
        for motion, seconds in (("reduce", "0s"), ("no-preference", "0.4s")):
            page, _ = self.open(self.plugin.url, reduced_motion=motion)
            self.assertEqual(page.locator(".bar li").first.evaluate(
                "(n) => getComputedStyle(n).transitionDuration"), seconds)

    def test_large_node(self):
        self.plugin.document = fixtures.large(16, 500)
        page = browser.open(self.plugin.url)
        self.pages.append(page)
        page.goto(self.plugin.url)
        first, again = page.evaluate("""async () => {
          const drawn = () => performance.getEntriesByName('draw', 'measure');
          for (let i = 0; i < 1000 && drawn().length < 2; i += 1)
            await new Promise((next) => setTimeout(next, 20));
          return drawn().slice(0, 2).map((entry) => entry.duration); }""")
        self.unfold(page)
        shown.check(self, self.plugin.document, page)
        self.check_width(page)
        text = json.dumps(self.plugin.document)
        print(f"16 GPUs with 500 buffers each, {len(text) >> 10} KiB of JSON: script time "
              f"{first:.0f} ms at first, {again:.0f} ms at a refresh")

    def test_screenshots(self):
        """Goal: the pictures of docs/ show this page. Method: from the fixture and from the
        document of a plugin on an H200 (docs/gpu-metrics), if requested."""
        folder = pathlib.Path(ROOT / "build" / "page")
        if os.environ.get("GPUSHM_REWRITE_DOCS"):
            folder = ROOT / "docs" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        seeded = self.plugin.document
        recorded = json.loads((ROOT / "docs/gpu-metrics/status.json").read_text())
        for name, scheme, viewport, document in (("light", "light", SHOT, seeded),
                                                 ("dark", "dark", SHOT, seeded),
                                                 ("phone", "light", PHONE, seeded),
                                                 ("h200", "light", SHOT, recorded)):
            self.plugin.document = document
            page = browser.open(self.plugin.url, viewport=viewport, scheme=scheme)
            self.pages.append(page)
            page.clock.set_fixed_time(document["time_unix_ms"])
            page.goto(self.plugin.url)
            page.locator(FRESH).wait_for()
            path = folder / f"status-{name}.png"
            page.screenshot(path=path, animations="disabled")
            self.assertLessEqual(path.stat().st_size, SHOTS_MAX_BYTES, name)


def main():
    global options
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--url")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    loader = unittest.TestLoader()
    if options.patterns:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in options.patterns]
    case = AnyPluginTest if options.url else None
    suite = (loader.loadTestsFromTestCase(case) if case
             else loader.loadTestsFromModule(sys.modules[__name__]))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
