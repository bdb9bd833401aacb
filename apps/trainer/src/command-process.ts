// The process of a command: its standard streams, the signals that it gets, and how it leaves.

import { closeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { SignalError } from './errors.js';
import { Interrupt } from './interrupt.js';
import { type NpmWatch, npmAbove, whenGone } from './npm-parent.js';
import { describeSystemError } from './system-error.js';

const STANDARD_STREAMS = [0, 1, 2] as const;

/**
 * Makes the process ready for a command. To be called before anything is printed.
 * @returns what listens to the signals; see CommandContext.listen
 */
export function openCommandProcess(): () => Interrupt {
  leaveDeadTerminals();
  const npm = npmAbove(process.env);
  let interrupt: Interrupt | undefined;
  outliveOutput(() => interrupt);
  return () => {
    interrupt ??= listen(npm);
    return interrupt;
  };
}

function listen(npm: NpmWatch | undefined): Interrupt {
  const interrupt = new Interrupt({ exit: (code) => process.exit(code) });
  process.on('SIGHUP', (signal) => interrupt.ask(new SignalError(signal)));
  // A launcher says so that the run's time is over, as startMpirun does.
  process.on('SIGUSR2', (signal) => interrupt.ask(new SignalError(signal, 'the launcher')));
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => interrupt.insist(new SignalError(signal)));
  }
  if (npm !== undefined) {
    whenGone(npm, () => interrupt.ask(new SignalError('SIGTERM', 'the end of npm')));
  }
  return interrupt;
}

/**
 * Closes, at the end, the terminals that have hung up. Node gives terminals their settings back as
 * it exits, and aborts with a native stack where one of them no longer takes any.
 */
function leaveDeadTerminals(): void {
  const terminals = STANDARD_STREAMS.filter((fd) => isatty(fd));
  process.once('exit', () => {
    for (const fd of terminals.filter((each) => !isatty(each))) {
      closeSync(fd);
    }
  });
}

/**
 * Makes a run outlive what it prints to, and another command end with it. A reader that has seen
 * enough (| head) asks a run to end; a terminal that hung up or a full disk only makes it quiet.
 */
function outliveOutput(running: () => Interrupt | undefined): void {
  process.stderr.on('error', () => mute(process.stderr));
  process.stdout.once('error', (error: NodeJS.ErrnoException) => {
    process.stdout.on('error', () => {});
    mute(process.stdout);
    const run = running();
    const isRun = run?.isLed === true;
    if (error.code === 'EPIPE') {
      if (!isRun) {
        process.exit(1);
      }
      run.ask(new SignalError('SIGPIPE', 'a closed output'));
      return;
    }
    const what = `what the command prints can't be written (${describeSystemError(error)})`;
    process.stderr.write(
      isRun ? `warning: ${what}; the run goes on without.\n` : `error: ${what}.\n`,
    );
    if (!isRun) {
      process.exit(1);
    }
  });
}

/** Makes what is written to a stream that is broken nothing, and no error again. */
function mute(stream: NodeJS.WriteStream): void {
  stream.write = () => true;
}
