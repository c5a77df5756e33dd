"""An engine is judged by the time in which somebody listened."""

from appliance.service.life_signs import ABSENCE_S, LifeSigns


def look_until(signs: LifeSigns, start: int, end: int) -> float:
    """Looks every second, and gives the silence at the end."""
    return [signs.silence(float(now)) for now in range(start, end + 1)][-1]


def test_silence_grows_from_the_last_sign() -> None:
    signs = LifeSigns(0.0)
    assert look_until(signs, 1, 30) == 30.0
    signs.heard(30.5)
    assert look_until(signs, 31, 40) == 9.5


def test_an_absence_of_the_listener_is_no_silence() -> None:
    signs = LifeSigns(0.0)
    look_until(signs, 1, 10)
    assert signs.silence(510.0) == 0.0
    assert look_until(signs, 511, 530) == 20.0


def test_a_step_that_was_paused_with_the_listener_is_not_stuck() -> None:
    signs = LifeSigns(0.0)
    look_until(signs, 1, 10)
    assert signs.stuck(10.5, 10.5) == 10.5
    assert signs.stuck(510.0, 510.0) == 0.0  # the first that is heard after it
    look_until(signs, 511, 540)
    assert signs.stuck(540.0, 540.0) == 30.0


def test_a_listener_that_is_a_little_late_was_there() -> None:
    signs = LifeSigns(0.0)
    assert signs.silence(ABSENCE_S) == ABSENCE_S
