"""What tests of pages share."""

from collections.abc import Iterator

import pytest

from app import models
from app.models import ModelHolder
from tests.app.fakes import FakeBackend


@pytest.fixture
def no_model() -> Iterator[None]:
    """No page of the test loads a model; the one that was there comes back afterwards."""
    before = models.shared()
    models.install(ModelHolder(lambda tell: FakeBackend()))
    yield
    models.install(before)
