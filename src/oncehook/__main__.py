from oncehook.cli import main

main()
