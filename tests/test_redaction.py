"""What looks like a secret is left out, and what only sounds like one stays."""

from __future__ import annotations

import pytest

from asap_ray.redaction import REDACTED, redacted, secrets_of

SECRETS = {
    "OpenAI": "sk-proj-abcdefghij0123456789ABCD",
    "Hugging Face": "hf_abcdefghijklmnopqrstuvwxyz",
    "GitHub": "ghp_abcdefghij0123456789ABCDEFGHIJ012345",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "Google": "AIzaSyA-abcdefghij0123456789ABCDEFGH",
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=list(SECRETS))
def test_keys_of_known_makers_are_left_out_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"401: key {secret}, wrong", f'{{"note": "{secret}"}}', f"--key={secret}", f"x\n{secret}\n"):
        assert secret not in redacted(text)
        assert redacted(text) == text.replace(secret, REDACTED)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Authorization: Bearer abcdef123456==", "Authorization: Bearer [redacted]"),
        ("https://me:hunter2@host/v1", "https://[redacted]@host/v1"),
        ('{"api_key": "abcdefgh12"}', '{"api_key": "[redacted]"}'),
        ("password=correct-horse", "password=[redacted]"),
    ],
)
def test_what_is_named_a_secret_is_left_out(text: str, rest: str) -> None:
    assert redacted(text) == rest


@pytest.mark.parametrize(
    "text",
    [
        "tokens_per_s: 123456789, max_tokens=4096, token budget: 500000",
        "skip_first_collective_permute_in_block_7, sk-learn, hf_config=/models/llama/config.json",
        "all-gather.12 = bf16[8192,28672]{1,0:T(8,128)(2,1)} on http://host:8000/v1",
        "the bearer of bad news; password: no; https://host/a@b",
        "the key is that data=4 fsdp=16 tensor=2 remat=full",
    ],
)
def test_words_of_the_trade_stay(text: str) -> None:
    assert redacted(text) == text


def test_secrets_of_the_environment_are_known_by_their_names() -> None:
    environ = {"WANDB_API_KEY": "0123456789abcdef", "HF_TOKEN": "long-enough", "KEY": "short", "KEYS": "x" * 20}
    assert secrets_of({**environ, "PATH": "/usr/bin:/bin", "db_password": "swordfish-9"}) == (
        *("0123456789abcdef", "long-enough", "swordfish-9"),
    )
    assert redacted("login long-enough failed", secrets_of(environ)) == "login [redacted] failed"
