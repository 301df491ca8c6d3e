"""The models of other places that this machine holds: fetched once each, whole, and shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from capyctl.checkpoints import hub
from capyctl.checkpoints.digest_cache import SETTLED_NS
from capyctl.checkpoints.downloads import download
from capyctl.checkpoints.downloads_source import Request
from capyctl.checkpoints.downloads_stream import PAUSES_S, Rules, check_address
from capyctl.checkpoints.model_files import Identity
from capyctl.checkpoints.sources_layout import Manifest, Place, read_manifest
from capyctl.checkpoints.sources_pruning import Unused, find_unused, remove_source
from capyctl.checkpoints.sources_secrets import read_owner_text, read_secret
from capyctl.checkpoints.sources_space import Space
from capyctl.contracts.checkpoints import Progress, Unfetchable
from capyctl.domain.checkpoints import RemoteSource, SourceKind

SOURCES_AT_ONCE = 2
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@attrs.frozen(kw_only=True)
class FetchPolicy:
    """What the host's document says of fetching."""

    huggingface: bool = True
    http: bool = True
    plain_http: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    endpoint: str = hub.ENDPOINT
    token_file: Path | None = None


@attrs.define(eq=False)
class _Download:
    """One source that somebody waits for."""

    listeners: list[Progress] = attrs.field(factory=list)
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    failures_count: int = 0
    failure: Unfetchable | None = None
    last: tuple[int, int] | None = None

    def progress(self, bytes_done: int, bytes_total: int) -> None:
        self.last = (bytes_done, bytes_total)
        for listener in self.listeners:
            listener(bytes_done, bytes_total)


@attrs.define(eq=False, kw_only=True)
class RemoteSources:
    """Implements `contracts.checkpoints.Sources` on this machine's disk.

    At most two sources come at a time, with at most four files of each.
    """

    space: Space
    policy: FetchPolicy
    secrets: Path
    """Folder of the owner-only files that ``secret://<name>`` stands for."""
    environ: Mapping[str, str] = attrs.field(factory=dict)
    """Where a token may be, when neither document nor host names a file."""
    learn: Callable[[Sequence[tuple[Identity, str]]], None] = attrs.field(default=lambda _: None)
    """Is given the digests of files that just came, so that they are not read again."""
    pauses_s: tuple[float, ...] = PAUSES_S
    _downloads: dict[str, _Download] = attrs.field(factory=dict, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(SOURCES_AT_ONCE), init=False
    )

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        """Bytes of the source's files, once they are whole and in place.

        Callers of one source share its download: one of them leads, and when that one is
        cancelled another goes on. What is there already needs neither network nor permission.

        Raises:
            Unfetchable: see there; also for those who waited while another's attempt failed.
        """
        shared = self._downloads.setdefault(source.key, _Download())
        shared.listeners.append(progress)
        seen_failures = shared.failures_count
        if shared.last is not None:
            progress(*shared.last)
        try:
            async with shared.turn:
                if shared.failures_count > seen_failures and shared.failure is not None:
                    raise shared.failure.with_traceback(None)
                return await self._lead(source, shared)
        finally:
            shared.listeners.remove(progress)
            if not shared.listeners:
                self._downloads.pop(source.key, None)

    async def prune(
        self, keys: Collection[str], paths: Collection[str], *, apply: bool
    ) -> tuple[Unused, ...]:
        """Sources that are none of ``keys``, hold none of ``paths`` and are not coming now;
        with ``apply`` those that were removed.

        Raises:
            OSError: one cannot be removed; those before it are gone.
        """
        wanted = frozenset((*keys, *self._downloads))
        root = self.space.root
        unused = await trio.to_thread.run_sync(find_unused, root, wanted, tuple(paths))
        for one in unused if apply else ():
            # A deployment that came meanwhile may have begun to fetch it.
            if one.key not in self._downloads:
                await trio.to_thread.run_sync(remove_source, root, one.key)
        return unused

    async def _lead(self, source: RemoteSource, shared: _Download) -> int:
        try:
            return await self._fetch(source, shared.progress)
        except Unfetchable as problem:
            shared.failures_count += 1
            shared.failure = problem
            raise

    async def _fetch(self, source: RemoteSource, progress: Progress) -> int:
        place = Place(self.space.root, source.key)
        found = await self._whole(place)
        if found is not None:
            return found.size_bytes
        request = await trio.to_thread.run_sync(self._request, source)

        admitted = False

        async def admit(total_bytes: int) -> int:
            nonlocal admitted
            bytes_max = await self.space.admit(place, total_bytes)
            admitted = True
            return bytes_max

        def moved(bytes_done: int, bytes_total: int) -> None:
            if not admitted and not bytes_total:
                return
            self.space.arrived(place.key, bytes_total - bytes_done)
            progress(bytes_done, bytes_total)

        async with self._limiter:
            try:
                size_bytes = await download(request, admit=admit, progress=moved)
            finally:
                self.space.release(place.key)
        # Digests of files that changed within one tick of the clock are not taken on trust.
        await trio.sleep(2 * SETTLED_NS / 1e9)
        await self._whole(place)
        return size_bytes

    async def _whole(self, place: Place) -> Manifest | None:
        """The manifest, when everything that it names is in place as it was verified."""
        manifest = await trio.to_thread.run_sync(read_manifest, place.manifest)
        if manifest is None or not await trio.to_thread.run_sync(manifest.is_whole, place.folder):
            return None
        self.learn(await trio.to_thread.run_sync(manifest.known_digests, place.folder))
        return manifest

    def _request(self, source: RemoteSource) -> Request:
        """What the program is told, secrets read. Blocks. Raises Unfetchable."""
        policy = self.policy
        asked = Request(
            root=str(self.space.root),
            key=source.key,
            allowed_hosts=policy.allowed_hosts,
            plain_http=policy.plain_http,
            pauses_s=self.pauses_s,
        )
        if source.kind is SourceKind.HUGGINGFACE:
            self._check_kind(policy.huggingface, "huggingface")
            return attrs.evolve(
                asked,
                endpoint=policy.endpoint,
                repository=source.repository,
                commit=source.commit,
                files=source.files,
                token=self._token(source),
            )
        self._check_kind(policy.http, "http")
        url, called = self._address(source)
        return attrs.evolve(
            asked, url=url, called=called, sha256=source.sha256, archive=source.archive
        )

    def _check_kind(self, allowed: bool, name: str) -> None:
        if not allowed:
            detail = f"this host fetches nothing of that kind (model_sources.{name})"
            raise Unfetchable("denied", detail, terminal=True, again=False)

    def _token(self, source: RemoteSource) -> str | None:
        """The document's, else the host's file, else the environment's."""
        if source.token_ref is not None:
            return read_secret(self.secrets, source.token_ref)
        if self.policy.token_file is not None:
            return read_owner_text(
                self.policy.token_file, "the file of model_sources.huggingface_token_file"
            )
        return next((self.environ[n] for n in TOKEN_VARIABLES if self.environ.get(n)), None)

    def _address(self, source: RemoteSource) -> tuple[str, str]:
        """The address, and what it may be called."""
        if source.url_ref is None:
            assert source.url is not None
            return source.url, hub.host_of(source.url)
        url = read_secret(self.secrets, source.url_ref)
        if not url.startswith(("https://", "http://")):
            detail = f"{source.url_ref} holds no https:// address"
            raise Unfetchable("secret_unavailable", detail, terminal=True)
        rules = Rules(allowed_hosts=self.policy.allowed_hosts, plain_http=self.policy.plain_http)
        check_address(url, rules, source.url_ref)
        return url, source.url_ref
