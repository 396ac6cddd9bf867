"""The web page: what it is served with; in a headless Chromium, with a fake server, what a person does with it."""

import re
import time
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypic_apps.server.routes import page as served_page

from tests.apps.server import browser, fake_api
from tests.apps.server.fake_api import Fake

QUESTION = "Who is from farther west?"
HOSTILE = "<img src=x onerror=window.hostile=1><svg onload=window.hostile=1>"
FILES = sorted(file.name for file in (resources.files("hypic_apps.server") / "page").iterdir())


@pytest.fixture(scope="module")
def http() -> Iterator[TestClient]:
    with TestClient(fake_api.create()) as client:
        yield client


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_with_its_type_and_checked_again_every_time(http: TestClient, name: str) -> None:
    answer = http.get("/" if name == "index.html" else f"/static/{name}")
    assert answer.status_code == 200 and answer.content
    assert answer.headers["content-type"] == served_page.TYPES["." + name.rpartition(".")[2]]
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    again = http.get(answer.url.path, headers={"If-None-Match": f'W/{answer.headers["etag"]}, "other"'})
    assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize("name", ["no.js", "..%2Fpage.py", "%2e%2e/page.py", "index.html%00", ""])
def test_nothing_else_is_served(http: TestClient, name: str) -> None:
    answer = http.get(f"/static/{name}")
    assert answer.status_code == 404
    assert "message" in answer.json()["error"]


def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline(http: TestClient) -> None:
    index = http.get("/").text
    linked = re.findall(r'(?:src|href)="([^"#]+)"', index)
    assert linked and all(link.removeprefix("static/") in FILES for link in linked)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", index)
    for name in FILES:
        if name.startswith("marked."):
            continue  # others' work, which the browser holds to the same headers
        text = http.get(f"/static/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(^|\s)//.*|/\*.*?\*/", "", text, flags=re.M | re.S), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", text), name
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in FILES, name


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, str]]:
    app = fake_api.create()
    with browser.served(app) as url:
        yield app, url


@pytest.fixture
def fake(server: tuple[Any, str]) -> Fake:
    server[0].state.fake = Fake()
    found: Fake = server[0].state.fake
    return found


class Window:
    """What a person has before them; the tests share one, emptied, as a new one costs a second."""

    def __init__(self, chromium: Any, url: str):
        self.chromium, self.url = chromium, url
        self.troubles: list[str] = []
        self._usual = self._new(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")

    def _new(self, **how: Any) -> Any:
        page = self.chromium.new_context(**how).new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._note)
        return page

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(message.text)

    def open(self, width: int = 1280, height: int = 860) -> Any:
        page = self._usual
        page.goto(f"{self.url}static/icon.svg")  # of the same origin, and runs nothing
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        page.set_viewport_size({"width": width, "height": height})
        page.goto(self.url)
        return page

    def open_phone(self) -> Any:
        page = self._new(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        page.goto(self.url)
        return page


@pytest.fixture(scope="module")
def shared_window(chromium: Any, server: tuple[Any, str]) -> Window:
    return Window(chromium, server[1])


@pytest.fixture
def window(shared_window: Window, fake: Fake) -> Iterator[Window]:
    """Ends with nothing in the browser's console but the refused requests that a test asks for."""
    shared_window.troubles.clear()
    yield shared_window
    assert shared_window.troubles == []


def ask(page: Any, question: str = QUESTION, wait: bool = True) -> None:
    page.wait_for_selector(".file", state="attached")
    n_turns = page.locator(".turn").count()
    page.fill("#question", question)
    page.press("#question", "Enter")
    if wait:
        ended(page, n_turns + 1)


def ended(page: Any, turn: int, run: int = 1) -> None:
    """Wait for an answer's figures."""
    page.wait_for_selector(f".turn:nth-child({turn}) .cost:nth-child({run}) .times", state="attached")


def attached(name: str, content: str = "Halestorm is from Red Lion.") -> dict[str, Any]:
    return {"name": name, "mimeType": "text/plain", "buffer": content.encode()}


def until(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_first_files_make_a_collection_and_are_seen_through(window: Window, fake: Fake) -> None:
    fake.file_seconds = 1.5
    page = window.open()
    page.wait_for_selector("#empty >> text=Add files to begin")
    page.set_input_files("#file-input", [attached("bands.md"), attached("table.bin"), attached("huge.txt")])
    row = page.locator(".file", has_text="bands.md")
    row.locator("text=/Being read: [0-9,]+ of 8,000 tokens/").wait_for()
    row.locator("text=12 passages").wait_for()
    page.wait_for_selector("#empty >> text=Ask documents")
    assert "no file that can be read" in page.locator(".file", has_text="table.bin").inner_text()
    assert "larger than 50 MB" in page.locator(".file", has_text="huge.txt").inner_text()
    assert list(fake.collections) == ["documents"]

    page.click("button[aria-label='Dismiss huge.txt']")
    page.click("button[aria-label='Delete table.bin']")
    page.click("#confirm >> text=Keep")
    page.click("button[aria-label='Delete table.bin']")
    page.click("#confirm-yes")
    until(lambda: page.evaluate("document.querySelectorAll('.file').length === 1"))
    assert [file["filename"] for file in fake.collections["documents"]["files"].values()] == ["bands.md"]
    assert page.evaluate("document.activeElement.id") == "choose-files"  # as the button is gone
    page.click("#delete-collection")
    page.click("#confirm-yes")
    page.wait_for_selector("#empty >> text=Add files to begin")
    assert fake.collections == {}


def test_files_are_dropped_anywhere(window: Window, fake: Fake) -> None:
    fake.add("bands")
    page = window.open()
    page.wait_for_selector("#empty >> text=bands is empty")
    page.evaluate("""() => {
        const transfer = new DataTransfer();
        transfer.items.add(new File(["text"], "dropped.txt"));
        for (const type of ["dragenter", "dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(type, {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }""")
    page.wait_for_selector(".file >> text=dropped.txt")
    assert page.locator("#overlay").is_hidden()


def test_collections_are_made_and_chosen(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.wait_for_selector("#collections .row[aria-current=true] >> text=bands")
    for name, trouble in {"two words": "letters, digits", "bands": "choose another name", "": "Write a name"}.items():
        page.fill("#collection-name", name)
        page.press("#collection-name", "Enter")
        page.wait_for_selector(f"#collections-error >> text={trouble}")
    page.fill("#collection-name", "letters")
    page.press("#collection-name", "Enter")
    page.wait_for_selector("#collections .row[aria-current=true] >> text=letters")
    page.reload()
    page.wait_for_selector("#collections .row[aria-current=true] >> text=letters")
    page.click("#collections >> text=bands")
    page.wait_for_selector("#composer-note >> text=bands")
    assert page.evaluate("Object.keys(localStorage).length") == 0
    page.reload()
    page.wait_for_selector("#composer-note >> text=Collection: bands")  # named also after a reload


def test_without_a_collection_the_model_is_asked_alone(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.click("#collections >> text=No collection")
    page.wait_for_selector("#empty >> text=Ask the model")
    assert page.locator("#files-section").is_hidden()
    page.fill("#question", "Hello?")
    page.press("#question", "Enter")
    ended(page, 1)
    assert "collection" not in fake.asked[0]
    assert [one["collection"] for one in fake.chats.values()] == [None]
    page.reload()
    page.wait_for_selector("#composer-note >> text=the model alone")
    page.click("#collections >> text=bands")
    page.wait_for_selector("#empty >> text=Ask bands")


def test_the_first_question_can_do_without_files(window: Window, fake: Fake) -> None:
    page = window.open()
    page.click("text=Ask without files")
    page.fill("#question", "Hello?")
    page.press("#question", "Enter")
    ended(page, 1)
    assert "collection" not in fake.asked[0]


def test_settings_are_sent_kept_and_reset(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.click("#open-settings")
    for field, value, told in (("#set-passages", "0", "passages from 1 to 100"), ("#set-length", "x", "tokens from 1")):
        page.fill(field, value)
        page.click("text=Use these")
        page.wait_for_selector(f"#settings-error >> text={told}")
        page.fill(field, "3")
    page.select_option("#set-mode", "full")
    page.fill("#set-system", " Be brief. ")
    page.click("text=Use these")
    page.wait_for_selector("#composer-note >> text=3 passages, without reuse, at most 3 tokens, own instructions")
    page.reload()
    ask(page)
    asked = fake.asked[0]
    assert (asked["n_documents"], asked["max_tokens"], asked["mode"]) == (3, 3, "full")
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION},
    ]  # fmt: skip
    page.click("#open-settings")
    page.click("#settings-reset")
    ask(page, "Again?")
    assert {"n_documents", "max_tokens", "mode"}.isdisjoint(fake.asked[1])
    assert fake.asked[1]["messages"][0]["role"] == "user"
    assert page.evaluate("Object.keys(localStorage).length") == 0


def test_an_answer_streams_in_with_its_sources_and_its_prompt(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    fake.first_seconds, fake.token_seconds = 0.3, 0.15
    page = window.open()
    page.evaluate("""() => {
        window.shifts = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((entry) => {
            const isOfMain = entry.sources.some(({node}) => document.querySelector("#main").contains(node));
            if (isOfMain) window.shifts += entry.value; // the list of conversations may grow
        }))
            .observe({type: "layout-shift", buffered: false});
    }""")
    ask(page, wait=False)
    page.wait_for_selector(".headline >> text=Reading 5 passages")
    assert page.locator(".sources li").count() == 5  # before the first token
    until(lambda: page.evaluate("document.querySelector('.answer').textContent.length > 10"))
    assert page.locator(".turn .times").count() == 0
    ended(page, 1)
    assert page.evaluate("window.shifts") < 0.02
    answer, sources, cost = (page.locator(f".turn {part}").bounding_box() for part in (".answer", ".sources", ".cost"))
    assert answer["y"] < cost["y"] and abs(answer["y"] - sources["y"]) < 20  # the answer first, its sources beside it

    asked = fake.asked[0]
    assert asked["messages"] == [{"role": "user", "content": QUESTION}]
    assert (asked["collection"], asked["stream"], asked["model"]) == ("bands", True, "smollm2-hybrid-155m")
    assert "mode" not in asked
    assert page.inner_text(".answer strong") == "Audioslave"
    assert "<b>Not bold.</b>" in page.inner_text(".answer")
    assert page.inner_text(".headline") == "227 of 930 tokens, 409 ms"
    assert page.locator(".strip").is_hidden()
    page.click(".headline")
    assert page.inner_text(".figures > p") == (
        "A token is a word, or a part of one. 227 were computed for this answer; 703 had been read before and were "
        "reused. The answer's first word came after 409 ms."
    )
    badges = page.locator(".badge").all_text_contents()
    assert [badge.strip() for badge in badges] == [
        "reused from disk", "reused from memory", "computed now: not read before", "reused from GPU memory",
        "reused from disk",
    ]  # fmt: skip
    assert page.locator(".similarity").all_inner_texts()[0].split() == ["similarity", "0.45"]
    assert "searching and waiting 3.1 ms" in page.inner_text(".times") and "960 ms in all" in page.inner_text(".times")
    until(lambda: page.evaluate("document.querySelector('#announce').textContent.includes('farther west')"))

    page.click(".sources li:nth-child(5) summary")
    assert "<script>" in page.inner_text(".sources li:nth-child(5) .passage")
    assert page.inner_text(".sources li:nth-child(5) .path") == "bands.md, page 7"  # and no word of seams
    assert "seam" not in page.inner_text(".sources")
    assert page.evaluate("window.hostile") is None and page.locator(".turn img, .turn script").count() == 0


def test_a_citation_opens_the_document_at_its_place(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    assert page.inner_text(".answer") == (
        "Audioslave is from farther west: Los Angeles, and Halestorm from Red Lion21. <b>Not bold.</b>"
    )
    for n, told, at in (
        (1, "Audioslave comes from Los Angeles", "Page 4"),
        (2, "Halestorm comes from Red Lion in Pennsylvania", ""),
    ):
        page.click(f".cite >> nth={n - 1}")
        page.wait_for_selector("#viewer[open] mark")
        assert (
            page.inner_text("#viewer-title") == "bands.md"
            and page.inner_text("#viewer-about") == "5 passages on 4 pages"
        )
        assert "".join(page.locator("#viewer mark").all_inner_texts()) == told
        assert page.locator("#viewer .cited").count() == 1 and at in page.inner_text("#viewer")
        box = page.locator("#viewer mark >> nth=0").bounding_box()
        assert 0 < box["y"] < 860
        page.keyboard.press("Escape")
        page.wait_for_selector("#viewer", state="hidden")
        assert page.evaluate("document.activeElement.className") == "cite"
    page.click(".sources summary >> nth=4")
    page.click("button[aria-label='Open in the document: passage 5']")
    page.wait_for_selector("#viewer .cited >> text=window.hostile")
    page.click("#viewer-close")
    page.click(".file-name")
    page.wait_for_selector("#viewer[open] >> text=Page 4")
    assert page.locator("#viewer .cited").count() == 0
    page.click("#viewer-close")
    fake.collections["bands"]["files"].clear()  # deleted by another
    page.click(".cite >> nth=0")
    page.wait_for_selector("#viewer-about >> text=This is the passage as it was read")
    assert page.inner_text("#viewer mark") == "Audioslave comes from Los Angeles"
    page.click("#viewer-close")


def test_what_stands_nowhere_is_not_cited(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    fake.answer = "The glacier lost eleven metres. Audioslave comes from Los Angeles."
    page = window.open()
    ask(page)
    assert page.inner_text(".answer") == "The glacier lost eleven metres. Audioslave comes from Los Angeles2."


def test_more_was_never_computed_than_there_was(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    fake.n_computed = 1000
    page = window.open()
    ask(page)
    assert page.inner_text(".headline") == "all 930 tokens, 409 ms"


def test_an_answer_that_there_is_none_has_no_sources(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    assert page.inner_text(".sources h3") == "Sources"
    fake.answer = "The documents do not say."
    ask(page)
    assert page.inner_text(".turn:nth-child(2) .sources h3") == "Read, and none of them says it"


def test_the_prompt_is_drawn_to_scale_and_told_in_words(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    page.click(".headline")
    drawn = page.evaluate("""() => [...document.querySelectorAll(".segment")].map((segment) => ({
        width: segment.getBoundingClientRect().width,
        pieces: [...segment.querySelectorAll(".piece")].map((piece) => piece.className.replace("piece ", "")),
        label: segment.ariaLabel,
    }))""")
    tokens = [14, 203, 187, 164, 221, 118, 23]
    total = sum(segment["width"] for segment in drawn)
    assert [segment["width"] / total for segment in drawn] == pytest.approx([n / 930 for n in tokens], abs=0.002)
    assert [segment["pieces"] for segment in drawn] == [
        ["leading"], ["seam", "hit"], ["seam", "hit"], ["seam", "miss"], ["seam", "hit"], ["seam", "hit"], ["asked"],
    ]  # fmt: skip
    assert drawn[3]["label"] == (
        "3. Red Lion, Pennsylvania: 164 tokens, computed now: not read before, the first 8 computed anew"
    )
    page.focus(".segment:first-child")
    for key in ("ArrowRight", "ArrowRight", "End", "Home", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text(".tip").startswith("1. Halestorm: 203 tokens, reused from disk")
    page.keyboard.press("Enter")
    assert page.locator(".sources li:first-child details").get_attribute("open") is not None
    page.click("text=Piece by piece")
    rows = page.locator(".table tbody tr").all_inner_texts()
    assert rows[2].split("\t") == ["2. Audioslave", "187", "8", "reused from memory"]


def test_markdown_is_formed_and_stays_text(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    fake.answer = fake_api.MARKDOWN
    page = window.open()
    ask(page)
    found = page.evaluate("[...document.querySelectorAll('.answer > *')].map((block) => block.tagName)")
    assert found == ["P", "P", "UL", "OL", "BLOCKQUOTE", "DIV", "P", "DIV", "P"]
    assert page.inner_text(".answer pre") == 'if a < b:\n    print("<script>window.hostile = 1</script>")'
    assert page.locator(".answer ul ul li").all_inner_texts() == ["nested"]
    assert page.locator(".answer table tr").count() == 3
    assert [link.get_attribute("href") for link in page.locator(".answer a").all()] == ["https://example.org/a"]
    assert page.locator(".answer a").get_attribute("rel") == "noopener noreferrer"
    assert page.inner_text(".answer del") == "no"
    assert "[a link](javascript:alert(1)) <img" in page.inner_text(".answer")
    assert page.locator(".answer :is(img, script)").count() == 0
    assert page.evaluate("window.hostile") is None
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("button[aria-label='Copy the code']")
    page.wait_for_selector("button[aria-label='Copy the code'] >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("if a < b:")


def test_hostile_text_stays_text_wherever_it_comes_from(window: Window, fake: Fake) -> None:
    fake.add("bands", f"{HOSTILE}.md", f"{HOSTILE}.bin")
    fake.answer = f"{HOSTILE} **{HOSTILE}** `{HOSTILE}` [x](javascript:alert(1))"
    page = window.open()
    ask(page, HOSTILE)
    fake.trouble = HOSTILE
    ask(page, "Again?", wait=False)
    page.wait_for_selector(f'.turn:last-child .error >> text="{HOSTILE}."')
    page.click("#files button[aria-label^='Delete'] >> nth=0")
    page.wait_for_selector(f"#confirm-title >> text={HOSTILE}")
    page.click("#confirm >> text=Keep")
    page.reload()
    page.wait_for_selector(f"#past >> text={HOSTILE}")
    page.wait_for_selector(".turn:nth-child(2)")
    page.click(".sources summary >> nth=4")
    shown = page.inner_text("body")
    assert HOSTILE in page.inner_text(".answer code") and "<script>window.hostile" in shown
    assert page.locator("body :is(script, iframe, img, a:not(.skip), b, svg)").count() == 0
    assert page.evaluate("window.hostile") is None


def test_the_browser_itself_makes_no_html_of_text_and_runs_nothing_inline(window: Window, fake: Fake) -> None:
    page = window.open()
    page.wait_for_selector("#empty .empty-title")
    for attempt in (
        "document.body.innerHTML = '<b>'",
        "document.body.setAttribute('onclick', '1')",
        "document.createElement('script').text = '1'",
        "new DOMParser().parseFromString('<b>', 'text/html')",
    ):
        tried = f"() => {{ try {{ {attempt}; return 'done'; }} catch (error) {{ return error.message; }} }}"
        assert "requires 'Trusted" in page.evaluate(tried)
    window.troubles.clear()  # the browser notes each of them


def test_the_keyboard_reaches_everything_in_the_order_in_which_it_stands(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    page.focus(".skip")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        told = page.evaluate("""() => {
            const on = document.activeElement;
            if (on === document.body) return ["", true];
            const box = on.getBoundingClientRect(), style = getComputedStyle(on);
            const ring = style.outlineStyle !== "none" || on.id === "question";
            return [on.id || on.ariaLabel || on.textContent.trim(), ring && box.width > 0];
        }""")
        if not told[0] or told in reached:
            break
        reached.append(told)
    assert [name for name, is_seen in reached if not is_seen] == []
    names = [name for name, _ in reached]
    wanted = ["new-conversation", "forget", "past-query", f"Rename {QUESTION}", f"Delete {QUESTION}",
              "collection-name", "Create", "delete-collection", "choose-files", "bands.md", "Delete bands.md",
              "Source 2: see where it says so", "Compare without reuse", "227 of 930 tokens, 409 ms", "question",
              "open-settings", "send"]  # fmt: skip
    assert [name for name in names if name in wanted] == wanted


def test_a_conversation_goes_on_and_is_kept(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    page.fill("#question", "Two")
    page.press("#question", "Shift+Enter")
    page.type("#question", "lines")
    page.press("#question", "Enter")
    ended(page, 2)
    assert fake.asked[1]["messages"] == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": fake_api.ANSWER},
        {"role": "user", "content": "Two\nlines"},
    ]
    page.click(".turn:nth-child(2) .headline")
    assert "340 of earlier turns" in page.inner_text(".turn:nth-child(2) .legend >> nth=0")
    page.click("#new-conversation")
    page.wait_for_selector("#empty >> text=Ask bands")
    ask(page, "Something else?")
    assert len(fake.asked[2]["messages"]) == 1
    first, second = fake.chats.values()
    until(lambda: [one["runs"][0]["state"] for one in second["turns"]] == ["done"])
    page.reload()
    page.wait_for_selector("h2 >> text=Something else?")  # where it was
    page.go_back()
    page.go_back()
    page.wait_for_selector(f"h2 >> text={QUESTION}")
    page.go_forward()
    page.go_forward()
    page.wait_for_selector("h2 >> text=Something else?")
    page.click(f"#past >> text={QUESTION}")
    ended(page, 2)
    assert page.url.endswith(f"#/chat/{first['id']}")
    ask(page, "A third?")
    assert [message["content"] for message in fake.asked[3]["messages"]][-1] == "A third?"
    assert len(fake.asked[3]["messages"]) == 5
    until(lambda: len(first["turns"]) == 3 and first["turns"][2]["runs"][0]["state"] == "done")
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]


def test_conversations_are_searched_renamed_and_deleted(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.wait_for_selector("#past-section", state="hidden")
    for question in ("One", "Two", "Three"):
        ask(page, question)
        page.click("#new-conversation")
    page.fill("#past-query", "tw")
    until(lambda: page.locator(".past-title").all_inner_texts() == ["Two"])
    page.fill("#past-query", "nothing")
    page.wait_for_selector("#past-none:visible")
    page.fill("#past-query", "")
    until(lambda: page.locator(".past-row").count() == 3)
    page.click("#past >> text=Two")
    page.wait_for_selector("h2 >> text=Two")
    page.click("button[aria-label='Rename Two']")
    page.fill("#rename-input", "Second")
    page.press("#rename-input", "Enter")
    until(lambda: "Second" in page.locator(".past-title").all_inner_texts())
    ask(page, "Go on")  # does not take the name back
    until(lambda: sorted(one["title"] for one in fake.chats.values()) == ["One", "Second", "Three"])
    page.click("button[aria-label='Delete Second']")
    page.click("#confirm-yes")
    page.wait_for_selector("#empty >> text=Ask bands")
    until(lambda: page.locator(".past-row").count() == 2)
    page.click("#forget")
    page.click("#confirm-yes")
    page.wait_for_selector("#past-section", state="hidden")
    assert fake.chats == {}


def test_a_conversation_that_could_not_be_kept_is_kept_later(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.route("**/v1/chats**", lambda route: route.abort())
    ask(page)
    page.wait_for_selector("#keep-note >> text=Not kept yet")
    page.unroute("**/v1/chats**")
    ask(page, "And then?")
    until(lambda: [len(one["turns"]) for one in fake.chats.values()] == [2])
    page.wait_for_selector("#keep-note", state="hidden")
    fake.chats.clear()  # deleted in another window
    ask(page, "A third?")
    until(lambda: [len(one["turns"]) for one in fake.chats.values()] == [3])


def test_an_address_that_leads_nowhere_is_told(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    page.wait_for_selector("#empty >> text=Ask bands")
    page.goto(f"{window.url}#/chat/conv-999")
    page.wait_for_selector("#keep-note >> text=no conversation")
    page.wait_for_selector("#empty >> text=Ask bands")


def test_a_deleted_file_leaves_the_conversation_that_is_open(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md", "other.md")
    page = window.open()
    ask(page)
    [chat] = fake.chats.values()
    until(lambda: chat["turns"] and chat["turns"][0]["runs"][0]["state"] == "done")
    chat["turns"][0]["runs"][0]["documents"][1] = None  # as the server does
    page.click("button[aria-label='Delete other.md']")
    page.click("#confirm-yes")
    page.wait_for_selector(".sources .gone >> text=Its file was deleted")
    assert page.locator(".cite").count() == 0 or "2" not in page.locator(".cite").all_inner_texts()
    page.click(".headline")
    page.click("text=Piece by piece")
    assert "Passage of a deleted file" in page.inner_text(".table")


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_an_answer_is_stopped_and_the_server_left_alone(window: Window, fake: Fake, how: str) -> None:
    fake.add("bands", "bands.md")
    fake.token_seconds = 0.3
    page = window.open()
    ask(page, wait=False)
    until(lambda: page.evaluate("document.querySelector('.answer').textContent.length > 3"))
    page.keyboard.press("Escape") if how == "Escape" else page.click("#stop")
    page.wait_for_selector(".headline >> text=Stopped")
    assert page.evaluate("document.activeElement.id") == ("question" if how == "Escape" else "send")
    until(lambda: fake.closed == 1)
    fake.token_seconds = 0.001
    page.click("text=Ask again")
    ended(page, 1)


TROUBLES = {
    "busy": "as many requests as it can hold: try again in 5 s.",
    "late": "reached the server's time limit",
    "cut": "The answer broke off",
    "context": "do not fit the context",
    "odd": "does not understand",
}


def test_a_failed_answer_says_why_where_it_belongs_and_is_tried_again(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    for trouble, told in TROUBLES.items():
        fake.trouble = trouble
        ask(page, trouble, wait=False)
        page.wait_for_selector(f".turn:last-child .run .error >> text={told}")
        page.click(".turn:last-child button:text('Try again')")
        page.wait_for_selector(".turn:last-child .times", state="attached")
        assert page.locator(".run .error").count() == 0
    assert ["SyntaxError" in trouble for trouble in window.troubles] == [True]  # told to who looks for it
    window.troubles.clear()


def test_a_server_that_is_gone_is_told(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    page.route("**/v1/**", lambda route: route.abort())
    ask(page, "Still there?", wait=False)
    page.wait_for_selector(".turn:last-child .error >> text=Check that you are connected")
    page.unroute("**/v1/**")


def test_a_key_is_asked_for_kept_for_the_tab_and_sent(window: Window, fake: Fake) -> None:
    fake.keys = {"sk-right"}
    fake.add("bands", "bands.md")
    page = window.open()
    for given, told in {"": "Write or paste", "sk-wrong": "not known here", "sk-operator": "an operator's key"}.items():
        page.fill("#key-input", given)
        page.press("#key-input", "Enter")
        page.wait_for_selector(f"#key-error >> text={told}")
    page.fill("#key-input", "sk-right")
    page.click("text=Use this key")
    ask(page)
    page.reload()
    page.wait_for_selector(f"#past >> text={QUESTION}")
    page.wait_for_selector(".file")
    page.wait_for_load_state("networkidle")  # else one of the first looks asks for the key, before the question
    fake.keys = {"sk-new"}  # revoked meanwhile: asked for when next needed, and the question is not lost
    ask(page, "Again?", wait=False)
    page.fill("#key-input", "sk-new")
    page.press("#key-input", "Enter")
    page.wait_for_selector(".turn:nth-child(2) .times", state="attached")
    page.click("#forget-key")
    page.wait_for_selector("#key-dialog[open]")
    assert page.evaluate("sessionStorage.length") == 0
    page.click("#key-cancel")
    page.wait_for_selector("#empty >> text=asks for an API key")


def test_a_key_is_kept_in_the_browser_where_that_is_wanted(window: Window, fake: Fake) -> None:
    fake.keys = {"sk-right"}
    fake.add("bands", "bands.md")
    page = window.open()
    page.fill("#key-input", "sk-right")
    page.check("#key-keep")
    page.press("#key-input", "Enter")
    page.wait_for_selector(".file")
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [1, 0]
    page.click("#forget-key")
    page.wait_for_selector("#key-dialog[open]")
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]


def test_the_same_is_run_in_full_and_both_are_shown(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    page = window.open()
    ask(page)
    page.click("text=Compare without reuse")
    ended(page, 1, run=2)
    first, second = fake.asked
    assert second == {**first, "mode": "full"}
    assert page.locator(".run-title").all_inner_texts() == ["With reuse", "Without reuse"]
    assert page.locator(".race strong").all_inner_texts() == ["409 ms", "4,184 ms"]
    assert page.inner_text(".verdict") == "With reuse the answer began 10.2 times sooner. Both answers are the same."
    tops = page.evaluate("[...document.querySelectorAll('.answer')].map((one) => one.getBoundingClientRect().top)")
    assert tops[0] == tops[1]  # side by side
    ask(page, "And then?")
    assert len(fake.asked[2]["messages"]) == 3 and "mode" not in fake.asked[2]


def test_scrolling_follows_the_answer_and_yields_to_the_reader(window: Window, fake: Fake) -> None:
    fake.add("bands", "bands.md")
    fake.answer = " ".join(f"word{i}" if i % 12 else f"word{i}\n\n" for i in range(600))
    fake.token_seconds = 0.004
    page = window.open(1280, 500)
    ask(page, wait=False)
    end = "document.querySelector('.answer').getBoundingClientRect().bottom - innerHeight"
    until(lambda: page.evaluate("document.querySelector('#scroller').scrollTop > 150"))
    assert page.evaluate(end) < 100
    page.mouse.move(600, 200)
    page.mouse.wheel(0, -120)
    page.wait_for_selector("#latest:visible")
    top = page.evaluate("document.querySelector('#scroller').scrollTop")
    until(lambda: page.evaluate(f"{end} > 400"))  # it goes on, below
    assert page.evaluate("document.querySelector('#scroller').scrollTop") == top
    page.click("#latest")
    assert page.evaluate(end) < 100


def test_a_phone_has_room_for_all_of_it(window: Window, fake: Fake) -> None:
    fake.add("bands", "a-rather-long-file-name-without-any-blank-in-it-at-all.md")
    fake.answer = fake_api.MARKDOWN + " " + "x" * 200
    page = window.open_phone()
    ask(page)
    page.click("text=Compare without reuse")
    ended(page, 1, run=2)
    fits = "document.documentElement.scrollWidth <= 360 && document.querySelector('#scroller').scrollWidth <= 360"
    assert page.evaluate(fits)
    assert page.locator("#side").is_hidden()
    page.click("#open-side")
    page.locator(".file-name").wait_for()
    assert page.evaluate("document.querySelector('#main').inert && document.activeElement.id") == "close-side"
    page.keyboard.press("Escape")
    page.locator("#side").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.id") == "open-side"
