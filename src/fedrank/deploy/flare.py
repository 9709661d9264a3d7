"""NVFLARE carries bytes: a site's executor passes requests to its `Site`, the server's controller runs a `Hub`.

Neither contains learning code, and neither reads anything from a job except the start signal: a site is configured in
the folder around its kit, the coordinator's run in the home around the server's kit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedrank.deploy.flare_active import Active, HubVoice, StopMark
from fedrank.deploy.flare_hardening import MAX_MESSAGE
from fedrank.deploy.flare_processes import end_with_parent
from fedrank.deploy.protocol import SITE_FAILS
from fedrank.deploy.records import log_line
from fedrank.files import Locked

if TYPE_CHECKING:
    from fedrank.deploy.site import Site
    from fedrank.experiments.runner.writer import News

TOPIC, ALIVE, LOG = "fedrank", "fedrank-alive", "site.log"
REQUEST, ANSWER, REASON, WORKS = "request", "answer", "reason", "works"
BUSY = 20.0  # seconds to wait for a site's lock: an aborted job may take time to end
AGAIN = 5.0  # seconds until a site that could not be opened is tried again
BEGINNING = 30.0  # seconds that sites have to start after a job began
GONE = 1.0  # seconds for which a site that answered before may be unreachable
RETRY = 0.1  # seconds
PROBE = 2.0  # seconds until a site that has not answered is asked whether it is running and working
DEAD = 5.0  # seconds without a connection to a site until its answer is given up
LOST = 10.0  # minimum number of seconds in which a site is idle before its answer counts as lost
SLOWEST = 20_000  # bytes per second of the slowest supported connection
OVERHEAD = 1 << 16  # maximum number of bytes that NVFLARE adds to a message
_MOST = f"{MAX_MESSAGE >> 20} MiB"


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers the coordinator's requests at a site with the `Site` in the folder around the kit.

    Error messages of the site, which may describe its data, stay here: the coordinator receives only their kind.
    """

    def __init__(self) -> None:
        super().__init__()
        end_with_parent()
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._site: Site | None = None
        self._tried = 0.0
        self._reason = ""
        self._working = 0  # requests

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            # An exception here would be swallowed, and the site would stay silent: store it for the next request.
            self._folder = home_of(fl_ctx)
            self._open(BUSY)
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(topic=ALIVE, message_handle_func=self._alive)
            engine.register_aux_message_handler(topic=TOPIC, message_handle_func=self._answer_counted)
        elif event_type == EventType.END_RUN:
            with self._turn:
                site, self._site = self._site, None
                self._reason = "the job has ended"
            if site is not None:
                site.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def open_site(self, folder: Path) -> Site:
        from fedrank.deploy.site import Site

        return Site.open(folder)

    def _open(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                self._site, self._reason = self.open_site(self._folder), ""
            except Locked as problem:
                if time.monotonic() < deadline:
                    time.sleep(RETRY)
                    continue
                self._keep(problem, "the site is in use by another process")
            except Exception as problem:
                self._keep(problem, f"{SITE_FAILS[1]} ({type(problem).__name__})")
            self._tried = time.monotonic()
            return

    def _keep(self, problem: Exception, kind: str) -> None:
        """Log the whole problem at the site; the coordinator receives its kind only."""
        self._reason = f"{kind}; the reason is in the site's site.log"
        log_line(self._folder / LOG, f"{SITE_FAILS[1]}: {type(problem).__name__}: {problem}")

    def _alive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        reply[WORKS] = self._working > 0
        return reply

    def _answer_counted(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        with self._counting:
            self._working += 1
        try:
            return self._answer(topic, request, fl_ctx)
        finally:
            with self._counting:
                self._working -= 1

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        with self._turn:
            if self._site is None and time.monotonic() - self._tried > AGAIN:
                self._open(0)
            site, reason = self._site, self._reason
        reply = make_reply(ReturnCode.OK)
        content = request.get(REQUEST)
        if site is None or not isinstance(content, bytes):
            reply[REASON] = reason if site is None else "a request must be bytes"
            return reply
        try:
            reply[ANSWER] = site.answer(content)
        except Exception as problem:  # unexpected; its text stays at the site
            log_line(self._folder / LOG, f"a request was not answered: {type(problem).__name__}: {problem}")
            reply[REASON] = f"the site cannot answer ({type(problem).__name__}); the reason is in its site.log"
        return reply


class HubController(Controller):  # type: ignore[misc]
    """Performs the run that `active.json` names, in the coordinator's home around the server's kit."""

    def __init__(self) -> None:
        super().__init__()
        end_with_parent()
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._heard: set[str] = set()
        self._missed: dict[
            str, tuple[float, float]
        ] = {}  # since when a site is unreachable, and when it was last tried

    def start_controller(self, fl_ctx: FLContext) -> None:
        self._engine = fl_ctx.get_engine()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Tasks are not used."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self._home = home = home_of(fl_ctx)
        self._began = time.monotonic()
        active = Active.read(home)
        if active.job != fl_ctx.get_prop(FLContextKey.JOB_META, {}).get("name"):
            return  # a job that remained when the server was restarted
        stopped = StopMark(home, active)
        with HubVoice(home, active, self._lost) as voice:
            try:
                voice.end(self._in_turn(active, voice.tell, lambda: bool(abort_signal.triggered) or stopped()))
            except Exception as problem:
                voice.end("failed", f"{type(problem).__name__}: {problem}")
                raise

    def coordinate(self, active: Active, tell: Callable[[News], None], stop: Callable[[], bool]) -> str:
        from fedrank.deploy.coordinate import coordinate

        return coordinate(
            active.task(), active.plan(), self.send, tell, stop, departure=active.departs(), home=self._home
        )

    def _in_turn(self, active: Active, tell: Callable[[News], None], stop: Callable[[], bool]) -> str:
        """Perform the run once the previous job has released its folder."""
        while True:
            try:
                return self.coordinate(active, tell, stop)
            except Locked:
                if stop() or time.monotonic() - self._began > BUSY:
                    raise
                time.sleep(RETRY)

    def send(self, site: str, request: bytes, patience: float) -> Future[bytes]:
        """Send a request to a site; return its answer or raise the reason. Requests to one site are sequential."""
        if site not in self._threads:
            self._threads[site] = ThreadPoolExecutor(1, thread_name_prefix=f"to-{site}")
        return self._threads[site].submit(self._carry, site, request, patience)

    def _carry(self, site: str, request: bytes, patience: float) -> bytes:
        from fedrank.deploy.site_calls import Silent

        began = time.monotonic()
        if len(request) > MAX_MESSAGE - OVERHEAD:
            raise Silent(f"the message is too long ({len(request):,} bytes; at most {_MOST})")
        while True:
            message = Shareable()
            message[REQUEST] = request
            left = max(patience - (time.monotonic() - began), RETRY)
            reply, code = self._watched(site, message, left, LOST + len(request) / SLOWEST)
            if reply is not None and code == ReturnCode.OK:
                self._heard.add(site)
                self._missed.pop(site, None)
                answer = reply.get(ANSWER)
                if isinstance(answer, bytes):
                    return answer
                raise Silent(str(reply.get(REASON) or f"{site} sent an empty answer")[:1000])
            now = time.monotonic()
            if code == ReturnCode.TIMEOUT:
                if now - began < 0.9 * patience:
                    raise Silent(f"the answer of {site} was lost: it is longer than {_MOST}, or the connection failed")
                raise Silent(f"{site} did not answer within {now - began:.0f} s")
            until = began + GONE if site in self._heard else self._began + BEGINNING
            if site in self._lost() or now + RETRY > min(began + patience, until):
                self._missed[site] = self._missed.get(site, (began, now))[0], now
                raise Silent(f"{site} cannot be reached ({code})")
            time.sleep(RETRY)

    def _watched(self, site: str, message: Shareable, patience: float, lost: float) -> tuple[Shareable | None, str]:
        """A reply and its return code. NVFLARE does not report that a site died or that its reply was lost.

        Therefore the site is asked whether it is running and working: one that is idle for `lost` seconds has already
        answered or never received the request.
        """
        asked: Future[tuple[Shareable | None, str]] = Future()
        threading.Thread(
            target=lambda: asked.set_result(self._request(site, TOPIC, message, patience)), daemon=True
        ).start()
        there = busy = time.monotonic()
        while not wait([asked], timeout=PROBE).done:
            reply, code = self._request(site, ALIVE, Shareable(), PROBE)
            now = time.monotonic()
            if (
                reply is not None and code != ReturnCode.COMMUNICATION_ERROR
            ):  # a time-out counts, too: a connection may be slow
                there = now
            if reply is None or code != ReturnCode.OK or reply.get(WORKS):
                busy = now
            if now - there > DEAD and not asked.done():
                return None, code
            if now - busy > lost and not asked.done():
                return None, ReturnCode.TIMEOUT
        return asked.result()

    def _request(self, site: str, topic: str, message: Shareable, patience: float) -> tuple[Shareable | None, str]:
        try:
            with self._engine.new_context() as fl_ctx:
                replies = self._engine.send_aux_request([site], topic, message, patience, fl_ctx, optional=True) or {}
        except Exception as problem:  # raised by NVFLARE while it stops
            return None, type(problem).__name__
        reply = replies.get(site)
        return reply, ReturnCode.COMMUNICATION_ERROR if reply is None else reply.get_return_code()

    def _lost(self) -> list[str]:
        """Sites that were unreachable repeatedly; a single message may be lost or refused."""
        return [site for site, (first, last) in self._missed.items() if last - first > 2 * GONE]


def home_of(fl_ctx: FLContext) -> Path:
    """The folder around the kit of this process: a site's folder or the coordinator's home."""
    return Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()).absolute().parent
