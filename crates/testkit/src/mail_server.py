# A real mail server (aiosmtpd) on loopback: it asks for TLS and a login, and prints each mail that it takes as a line of JSON.
# The login is a file, because everybody sees arguments: mail_server.py CERTIFICATE KEY LOGIN
import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

certificate, key, login = sys.argv[1:]
with open(login) as file:
    username, password = json.load(file)


def say(said):
    print(json.dumps(said), flush=True)


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody"):
            return "550 5.1.1 there is nobody of that name here"
        if address.startswith("later"):
            return "451 4.7.1 come back later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        say({
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "ehlo": session.host_name,
            "headers": {name.lower(): str(value) for name, value in message.items()},
            "defects": [str(defect) for defect in message.defects],
            "text": message.get_content(),
            "longest": max(len(line) for line in envelope.content.splitlines()),
            "ascii": envelope.content.isascii(),
        })
        return "250 2.0.0 taken"


def authenticate(server, session, envelope, mechanism, data):
    known = data.login == username.encode() and data.password == password.encode()
    return AuthResult(success=known, handled=known)


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    common = {"hostname": "mail.test", "authenticator": authenticate, "auth_required": True}
    by_login = {**common, "auth_exclude_mechanism": ["PLAIN"]}

    async def listen(tls, options):
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: SMTP(Handler(), **options), "127.0.0.1", 0, ssl=tls)
        return server.sockets[0].getsockname()[1]

    upgraded = {"tls_context": context, "require_starttls": True}
    say({
        "starttls": await listen(None, {**common, **upgraded}),
        "login": await listen(None, {**by_login, **upgraded}),
        "tls": await listen(context, {**common, "auth_require_tls": False}),
    })
    await asyncio.Event().wait()


asyncio.run(main())
