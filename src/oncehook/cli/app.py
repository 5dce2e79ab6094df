"""Which inbox a command is for: `--app`, the word APP, or `app` in oncehook.toml; else the configuration alone."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncehook.config.configuration import Configuration, load
from oncehook.model.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehook.inbox import Inbox

OPTION = "oncehook.app"
VARIABLE = "ONCEHOOK_CONFIG"


def _remember(context: click.Context, parameter: click.Parameter, app: str | None) -> None:
    if app is not None:
        context.meta[OPTION] = app


app_option = click.option(
    "--app",
    "app_option",
    metavar="MODULE:INBOX",
    expose_value=False,
    callback=_remember,
    help='Your inbox, such as hooks:inbox; "" for none.  [default: app in oncehook.toml]',
)


def app_name(configuration: Configuration, word: str | None = None) -> str | None:
    """The name of the app: the word, `--app`, or the file's; None if there is none."""
    context = click.get_current_context(silent=True)
    option: str | None = None if context is None else context.meta.get(OPTION)
    if word is not None and option is not None and word != option:
        raise click.UsageError(f"APP is {word} and --app is {option}: give one of them")
    chosen = next((name for name in (word, option) if name is not None), configuration.settings.app)
    return chosen or None


def configured(config: str | None, word: str | None = None) -> "tuple[Configuration, Inbox | None]":
    """The configuration, with the database and sources of the app, and the app's inbox; None without an app."""
    configuration = load(config)
    name = app_name(configuration, word)
    if name is None:
        return configuration, None
    with _configuration_file(config):
        inbox = load_inbox(name)
    runtime = inbox._runtime
    sources = {source.name: source.settings for source in runtime.sources.values()}
    return replace(runtime.configuration, settings=runtime.settings, sources=sources), inbox


@contextmanager
def _configuration_file(config: str | None) -> Iterator[None]:
    """While an app is imported, its own `Inbox()` reads the file of `--config`."""
    before = os.environ.get(VARIABLE)
    if config is not None:
        os.environ[VARIABLE] = config
    try:
        yield
    finally:
        if config is not None:
            os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def configured_inbox(config: str | None, word: str | None = None) -> "Inbox":
    """The app's inbox; without an app, an inbox with the sources of the configuration."""
    from oncehook.inbox import Inbox

    configuration, inbox = configured(config, word)
    return Inbox(config=configuration) if inbox is None else inbox


def load_inbox(app: str) -> "Inbox":
    """The inbox of `module:attribute`. The current directory is on the path."""
    from oncehook.inbox import Inbox

    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{app} is not module:inbox, such as hooks:inbox")
    module = _import(app, module_name)
    try:
        inbox: Any = getattr(module, attribute)
    except AttributeError:
        made = [name for name, value in vars(module).items() if isinstance(value, Inbox)]
        hint = f": did you mean {module_name}:{made[0]}?" if made else ", and no Inbox by any other name"
        raise ConfigurationError(f"{module_name} has no {attribute}{hint}") from None
    if not isinstance(inbox, Inbox):
        raise ConfigurationError(f"{app} is a {type(inbox).__name__}, not an Inbox")
    return inbox


def _import(app: str, name: str) -> Any:
    folder = os.getcwd()  # noqa: PTH109  # sys.path holds texts
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"there is no module {error.name} in {folder}, for the app {app}") from None
        summary = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise ConfigurationError(
            f"the app {app} cannot be loaded: {summary} ({_place(error)}). "
            f'`python -c "import {name}"` shows the traceback. Commands that run no handler can do without it: --app ""'
        ) from None


def _place(error: Exception) -> str:
    """FILE:LINE where the user's code failed: the innermost frame that is in no installed package."""
    if isinstance(error, SyntaxError):
        return f"{_short(error.filename or '?')}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    installed = (str(Path(__file__).parents[1]), str(Path(os.__file__).parent), "site-packages")
    own = [frame for frame in frames if not any(part in frame.filename for part in installed)]
    frame = (own or frames)[-1]
    return f"{_short(frame.filename)}:{frame.lineno}"


def _short(file: str) -> str:
    """As it stands below the current directory, else in full."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
