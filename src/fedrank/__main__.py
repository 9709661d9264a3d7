"""`python -m fedrank` is the command `fedrank`."""


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback, even during imports."""
    try:
        from fedrank.cli import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
