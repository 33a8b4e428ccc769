"""Programs written by a model, run where they can do no harm, against tests that they cannot see.

    grader process (trusted)             test sandbox (dataset's tests)           program sandbox (model's program)
    ------------------------             ------------------------------           ---------------------------------
    Runner.run(job)  --tests-------->    zygote -> fork: tests run here
                     --program----------------------------------------------->    zygote -> fork: program runs here
                                         candidate(1, 2)  --name, arguments-->    f(1, 2)
                                         == 3 ?           <--a value---------
    Outcome          <--counts-------

What this rests on:

- Tests never enter the program's sandbox, and no message from the program means "passed". It can only answer a call
  with a value, and the values are compared in another process. Exit codes, prints, patched builtins, atexit handlers,
  threads or bytes written to the channel are therefore at most a wrong value.
- Values cross as JSON with tags for the types of Python's data (values.py). There is no pickle, and an object of the
  program's own class arrives as an opaque reference, so its `__eq__` is never asked.
- Programs that read stdin and write stdout are compared in the grader process, which alone has the expected outputs.
- Each sandbox is a bubblewrap container with a warm interpreter in it, the zygote. It is process 1 there, forks for
  each program, and afterwards kills and reaps whatever is left and replaces the temporary folder. A sandbox runs one
  program at a time, so two programs never meet.

Modules inside a sandbox (standard library only): values wire seccomp confine zygote program_side test_side.
Modules outside: job box runner.
"""
