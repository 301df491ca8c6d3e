"""On a host: reads a join file, meets the server that it names and no other, and joins.

The key is made here and never leaves. It is kept with the invitation before anything is sent, so
that a join that broke off anywhere goes on with the same file and the same key.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import NoReturn

import h11
import trio

from capyctl.config.owner_files import OwnerFileUnusable, read_owner_file, write_owner_file
from capyctl.config.server_document import split_url
from capyctl.link.certificates import (
    BadCertificate,
    Key,
    check_issued,
    key_digest,
    key_to_pem,
    new_key,
    read_key,
    request_pem,
)
from capyctl.link.contexts import joining_context, server_tls_name
from capyctl.link.handshake import shake_hands
from capyctl.link.identity import (
    HostIdentity,
    IdentityUnusable,
    read_identity,
    write_identity,
)
from capyctl.link.invitations import JoinRefused
from capyctl.link.peers import peer_server_id, why_refused
from capyctl.wire.enrolment import (
    JOIN_BODY_BYTES_MAX,
    JOIN_FILE_BYTES_MAX,
    JOIN_PATH,
    BadEnrolment,
    JoinFile,
    Redeemed,
    Redemption,
    read_join_file,
    read_redeemed,
    write_redemption,
)

CONNECT_S_MAX = 10.0
ANSWER_S_MAX = 30.0
_READ_BYTES = 8192
_PENDING_BYTES_MAX = 8192


def open_join_file(path: Path) -> JoinFile:
    """The join file at ``path``.

    Raises:
        JoinRefused: it is missing, open to others, or not what `invite host` wrote.
    """
    try:
        return read_join_file(read_owner_file(path, bytes_max=JOIN_FILE_BYTES_MAX))
    except FileNotFoundError:
        raise JoinRefused("join_file_unusable", f"there is no join file {path}") from None
    except OwnerFileUnusable as problem:
        raise JoinRefused("join_file_unusable", str(problem)) from problem
    except BadEnrolment as problem:
        raise JoinRefused(
            "join_file_unusable",
            f"{path} is not a join file as `capyctl invite host` writes it: {problem}. Copy it "
            "again, whole, or invite again",
        ) from problem


async def join(
    identity_dir: Path, file: JoinFile, *, host_name: str, recovers: bool
) -> HostIdentity:
    """Join the server that ``file`` names, under the name ``host_name`` of this machine's document.

    Nothing secret is sent before the server has shown a certificate of the authority in the file.
    Broken off anywhere, also by a crash or by cancelling, it is to be called again with the same
    file: until that expires, the server answers the same key with the same certificate.

    Args:
        recovers: this machine is a revoked host that comes back under its id.

    Raises:
        JoinRefused: this machine has not joined. The message says what to do.
        OSError: the identity cannot be written.
    """
    _check_file(file, host_name=host_name, recovers=recovers)
    finished = _finished(identity_dir, file)
    if finished is not None:
        return finished
    _check_machine(identity_dir, file)
    key = _pending_key(identity_dir, file)
    asked = Redemption(
        invitation=file.invitation,
        secret=file.secret,
        host_name=host_name,
        recovers=recovers,
        request_pem=request_pem(key),
    )
    redeemed = await _redeem(file, asked)
    _check_answer(file, key, redeemed)
    write_identity(
        identity_dir,
        key=key,
        certificate_pem=redeemed.certificate_pem,
        host=redeemed.host,
        name=file.host_name,
        server_id=file.server_id,
        bootstrap_address=file.bootstrap_address,
        control_address=file.control_address,
        authority_pem=file.authority_pem,
    )
    _pending_path(identity_dir).unlink(missing_ok=True)
    identity = read_identity(identity_dir)
    assert identity is not None
    return identity


def _check_file(file: JoinFile, *, host_name: str, recovers: bool) -> None:
    if file.host_name != host_name:
        raise JoinRefused(
            "host_name_mismatch",
            f"the join file is for a host named {file.host_name}, and this machine's document says "
            f"{host_name}: change `name` in the document, or invite {host_name} on the server",
        )
    if recovers and file.recover is None:
        raise JoinRefused(
            "recovery_not_expected",
            f"the join file is for a new host {file.host_name}: join without --recover. To take a "
            f"revoked host back, `capyctl invite host {file.host_name} --recover --output F` on "
            "the server",
        )
    if not recovers and file.recover is not None:
        raise JoinRefused(
            "recovery_expected",
            f"the join file takes the revoked host {file.host_name} back: join with --recover",
        )


def _finished(identity_dir: Path, file: JoinFile) -> HostIdentity | None:
    """The identity, where a first join with this file broke off after all of it was written."""
    key = None if file.recover is not None else _kept_key(identity_dir, file)
    if key is None:
        return None
    try:
        known = read_identity(identity_dir)
    except IdentityUnusable:
        return None
    if known is None or known.shown.key_digest != key_digest(key.public_key()):
        return None
    _pending_path(identity_dir).unlink(missing_ok=True)
    return known


def _check_machine(identity_dir: Path, file: JoinFile) -> None:
    """A machine that is a host already joins again as itself alone, and only to come back."""
    try:
        known = read_identity(identity_dir)
    except IdentityUnusable as problem:
        if file.recover is not None:
            return  # It is what the recovery is for.
        raise JoinRefused("joined_already", str(problem)) from problem
    if known is None:
        return
    if file.recover is None:
        raise JoinRefused(
            "joined_already",
            f"this machine is host {known.name} ({known.host}) of server {known.server_id} "
            "already: start it with `capyctl start host`. Where it was revoked, it comes back with "
            f"`capyctl invite host {known.name} --recover` on the server and `capyctl join host "
            f"--recover` here. To make it another host, move {identity_dir} away first",
        )
    if known.server_id != file.server_id or known.host != file.recover:
        raise JoinRefused(
            "other_server",
            f"the join file takes back host {file.recover} of server {file.server_id}, and this "
            f"machine is host {known.host} of server {known.server_id}: use the file on the "
            "machine it is for",
        )


def _pending_path(identity_dir: Path) -> Path:
    return identity_dir / "joining.json"


def _pending_key(identity_dir: Path, file: JoinFile) -> Key:
    """The key for this invitation: kept from an earlier try, or made and kept now."""
    found = _kept_key(identity_dir, file)
    if found is not None:
        return found
    key = new_key()
    kept = {"invitation_id": file.invitation, "key": key_to_pem(key)}
    write_owner_file(_pending_path(identity_dir), json.dumps(kept, indent=2) + "\n")
    return key


def _kept_key(identity_dir: Path, file: JoinFile) -> Key | None:
    """The key of an earlier try with this invitation; None, too, if nothing can be done with it."""
    try:
        body = read_owner_file(_pending_path(identity_dir), bytes_max=_PENDING_BYTES_MAX)
        found = json.loads(body)
        return read_key(found["key"]) if found["invitation_id"] == file.invitation else None
    except (FileNotFoundError, OwnerFileUnusable, ValueError, KeyError, TypeError, AttributeError):
        return None


def _check_answer(file: JoinFile, key: Key, redeemed: Redeemed) -> None:
    try:
        shown = check_issued(redeemed.certificate_pem, key=key, authority_pem=file.authority_pem)
    except BadCertificate as problem:
        raise JoinRefused(
            "server_failed", f"the server's answer cannot be used: {problem}; invite again"
        ) from problem
    if shown.host != redeemed.host or file.recover not in (None, redeemed.host):
        raise JoinRefused("server_failed", "the server's answer is for another host; invite again")


async def _redeem(file: JoinFile, asked: Redemption) -> Redeemed:
    host, port = split_url(file.bootstrap_address)
    try:
        context = joining_context(file.authority_pem)
    except ssl.SSLError as problem:
        raise JoinRefused(
            "join_file_unusable", "the join file's authority is damaged: invite again"
        ) from problem
    try:
        with trio.fail_after(CONNECT_S_MAX):
            raw = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError) as problem:
        why = str(problem) or f"no connection within {CONNECT_S_MAX:g} s"
        raise JoinRefused(
            "server_unreachable",
            f"the server's bootstrap address {file.bootstrap_address} does not answer: {why}. It "
            "must run, and listen on an address that this machine reaches",
        ) from problem
    async with raw:
        try:
            with trio.fail_after(ANSWER_S_MAX):
                return await _converse(raw, context, file, asked)
        except trio.TooSlowError:
            raise JoinRefused(
                "server_unreachable",
                f"{file.bootstrap_address} did not answer within {ANSWER_S_MAX:g} s; run the same "
                "command again",
            ) from None
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as problem:
            raise JoinRefused(
                "server_unreachable",
                f"the connection to {file.bootstrap_address} was cut; run the same command again",
            ) from problem


async def _converse(
    raw: trio.SocketStream, context: ssl.SSLContext, file: JoinFile, asked: Redemption
) -> Redeemed:
    tls = trio.SSLStream(raw, context, server_hostname=server_tls_name(file.server_id))
    try:
        await shake_hands(tls)
    except trio.BrokenResourceError as problem:
        cause = problem.__cause__
        if isinstance(cause, ssl.SSLEOFError) or not isinstance(cause, ssl.SSLError):
            raise  # A cut says nothing of who it is: a server that takes no more now does it.
        _not_trusted(file, why_refused(problem) or str(cause), problem)
    if peer_server_id(tls) != file.server_id:
        _not_trusted(file, "the other side is another server", None)
    # From here on it is the server of the join file, and may have the secret.
    status, body = await _post(tls, file.bootstrap_address, write_redemption(asked))
    if status == 200:
        try:
            return read_redeemed(body)
        except BadEnrolment as problem:
            raise JoinRefused("server_failed", f"the server's answer: {problem}") from problem
    _raise_refusal(status, body)


async def _post(
    tls: trio.SSLStream[trio.SocketStream], address: str, body: bytes
) -> tuple[int, bytes]:
    http = h11.Connection(h11.CLIENT)
    headers = [
        ("host", address.removeprefix("https://")),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    sent = http.send(h11.Request(method="POST", target=JOIN_PATH, headers=headers))
    sent = (sent or b"") + (http.send(h11.Data(data=body)) or b"")
    await tls.send_all(sent + (http.send(h11.EndOfMessage()) or b""))
    status = 0
    answer = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await tls.receive_some(_READ_BYTES)))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            answer += event.data
            if len(answer) > JOIN_BODY_BYTES_MAX:
                raise JoinRefused("server_failed", "the server's answer is too long")
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(answer)
        elif not isinstance(event, h11.InformationalResponse):
            raise trio.BrokenResourceError("the answer broke off")


def _raise_refusal(status: int, body: bytes) -> NoReturn:
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "server_failed", f"the server answered {status} without a reason"
    raise JoinRefused(code, message)


def _not_trusted(file: JoinFile, why: str, problem: BaseException | None) -> NoReturn:
    raise JoinRefused(
        "server_not_trusted",
        f"what answers at {file.bootstrap_address} is not the server that this join file is from: "
        f"{why}. Nothing was sent to it. If the server was set up anew, invite again",
    ) from problem
