"""Run programs written by a model where they can do no harm, against tests that they cannot see.

    grader process (trusted)             test sandbox (dataset's tests)           program sandbox (model's program)
    ------------------------             ------------------------------           ---------------------------------
    Runner.run(job)  --tests-------->    zygote -> fork: tests run here
                     --program----------------------------------------------->    zygote -> fork: program runs here
                                         candidate(1, 2)  --name, arguments-->    f(1, 2)
                                         == 3 ?           <--a value---------
    Outcome          <--counts-------

Why this is secure:

- Tests never enter the program's sandbox, and no message from the program means "passed". It can only answer a call
  with a value, and values are compared in another process. So exit codes, prints, patched builtins, atexit handlers,
  threads or bytes written to the channel can produce at most a wrong value.
- Values are sent as JSON with tags for Python's data types (values.py), never as pickles. An object of a class of the
  program arrives as an opaque reference, so its `__eq__` is never called.
- The output of programs that read stdin and write stdout is compared in the grader process, which alone has the
  expected output.
- Each sandbox is a bubblewrap container with a warm interpreter, the zygote, as process 1. It forks for each program,
  then kills and reaps everything left and replaces the temporary folder. A sandbox runs one program at a time, so
  programs never meet.

Modules inside a sandbox (standard library only): values wire seccomp confine zygote program_side test_side.
Modules outside: job box runner.
"""
