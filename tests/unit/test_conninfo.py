"""The URL of a database: what holds where it says nothing, and errors that keep its password to themselves."""

from __future__ import annotations

import string
import traceback
from urllib.parse import quote

import pytest

from outspark.database import conninfo
from outspark.errors import SettingsError

SECRETS = [
    "Zq%zX9",
    "Zq/X9",
    "Zq12/X9",
    "Zq@X9",
    "12/Zq@X9",
    "Zq%",
    "Zq/X9?Kw",
    "12/Zq?X9=",
    "12?Zq/X9",
    "Zq X9",
    "'Zq",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "form",
    [
        "postgresql://ada:{}@db/shop",
        "postgres://ada:{}@db:5432,other/shop?sslmode=prefer",
        "postgresql+psycopg://ada:{}@db/shop",
        "host=db password={} dbname=shop other",
        "postgresql://db/shop?user=ada&password={}%zz",
    ],
)
def test_no_piece_of_a_password_is_in_an_error(form: str, secret: str) -> None:
    try:
        parsed = conninfo.options(form.format(secret))
    except SettingsError as error:
        text = "".join(traceback.format_exception(error))
        said = text[text.index("SettingsError") :]
        assert "is not valid" in said
        assert not any(piece in said for piece in ("Zq", "X9", "Kw"))
    else:
        assert parsed["password"] == secret
        assert (parsed["host"], parsed["dbname"]) in {("db", "shop"), ("db,other", "shop")}


def test_every_printable_character_passes_when_it_is_encoded() -> None:
    secret = "".join(c for c in string.printable if c.isprintable())
    assert conninfo.options(f"postgresql://ada:{quote(secret, safe='')}@db/shop")["password"] == secret


def test_what_is_wrong_behind_the_password_is_said() -> None:
    with pytest.raises(SettingsError, match='invalid URI query parameter: "sslmod"'):
        conninfo.options("postgresql://ada:secret@db/shop?sslmod=require")


def test_a_user_with_an_at_sign_may_stand_among_the_parameters() -> None:
    assert conninfo.options("postgresql://db/shop?user=ada@shop")["user"] == "ada@shop"


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("postgresql://a,b/shop", "read-write"),
        ("host=a,b dbname=shop", "read-write"),
        ("hostaddr=127.0.0.1,127.0.0.2 dbname=shop", "read-write"),
        ("postgresql://a,b/shop?target_session_attrs=any", "any"),
        ("postgresql://a/shop", None),
    ],
)
def test_of_several_hosts_the_writable_one_is_wanted(url: str, wanted: str | None) -> None:
    assert conninfo.options(url).get("target_session_attrs") == wanted


def test_a_url_has_the_last_word_but_for_what_is_ours() -> None:
    url = "postgresql://a/shop?tcp_user_timeout=5000&application_name=theirs"
    options = conninfo.options(url, application_name="ours")
    assert (options["tcp_user_timeout"], options["application_name"]) == ("5000", "ours")
    assert options["connect_timeout"] == conninfo.CONNECT_TIMEOUT
