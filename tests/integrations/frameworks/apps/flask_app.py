"""Flask, with the extension."""

from flask import Flask, current_app

from oncehook.integrations.flask import Oncehook
from tests.integrations.frameworks.shop import inbox

app = Flask(__name__)
Oncehook(app, inbox)


@app.get("/")
def home() -> str:
    return f"the shop {current_app.name.rpartition('.')[2]}"
