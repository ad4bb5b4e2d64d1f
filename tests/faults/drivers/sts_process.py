"""A program for `credential_process` of an AWS profile, which asks an S3 server of the tests for a session each time.

    python sts_process.py ENDPOINT ACCESS_KEY SECRET_KEY CALLS

The program adds a line with the access key of the session to the file CALLS.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import botocore.session

SESSION_SECONDS = 900
"""The shortest session of AssumeRole."""


def assume_role(endpoint: str, access_key: str, secret_key: str) -> dict[str, Any]:
    """Return the keys, the token and the end of a session."""
    client = botocore.session.Session().create_client(
        "sts",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )
    answer = client.assume_role(
        RoleArn="arn:aws:iam::111122223333:role/lake", RoleSessionName="lake", DurationSeconds=SESSION_SECONDS
    )
    found: dict[str, Any] = answer["Credentials"]
    return found


def main() -> None:
    *server, calls = sys.argv[1:]
    given = assume_role(*server)
    with open(calls, "a") as file:
        file.write(f"{given['AccessKeyId']}\n")
    given["Expiration"] = given["Expiration"].isoformat()
    print(json.dumps({"Version": 1} | {name: given[name] for name in NAMES}))


NAMES = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")

if __name__ == "__main__":
    main()
