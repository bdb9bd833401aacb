// The process of a command: its standard streams, the signals that it gets, and how it leaves.

import { closeSync, constants, openSync, readFileSync, readlinkSync, writeSync } from 'node:fs';
import { devNull } from 'node:os';
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
  const parents = { npm: npmAbove(process.env), isUnderNohup: isUnderNohup(), hasHungUp: false };
  let interrupt: Interrupt | undefined;
  outliveOutput(() => interrupt);
  return () => {
    interrupt ??= listen(parents, () => {
      interrupt = undefined;
    });
    return interrupt;
  };
}

/** What started the process, and what has become of it. */
interface Parents {
  readonly npm: NpmWatch | undefined;
  readonly isUnderNohup: boolean;
  hasHungUp: boolean;
}

/** @param onDispose called when the signals have their usual effects again */
function listen(parents: Parents, onDispose: () => void): Interrupt {
  const insist = (signal: NodeJS.Signals) => interrupt.insist(new SignalError(signal));
  const listeners = {
    SIGHUP: (signal: NodeJS.Signals) => {
      parents.hasHungUp = true;
      if (!parents.isUnderNohup) {
        interrupt.ask(new SignalError(signal));
      }
    },
    // A scheduler says so that the run's time is over.
    SIGUSR2: (signal: NodeJS.Signals) => interrupt.ask(new SignalError(signal, 'the launcher')),
    SIGINT: insist,
    SIGTERM: insist,
  };
  const all = Object.entries(listeners) as [NodeJS.Signals, (signal: NodeJS.Signals) => void][];
  const interrupt = new Interrupt({
    exit: (code) => process.exit(code),
    onDispose: () => {
      for (const [signal, listener] of all) {
        process.off(signal, listener);
      }
      onDispose();
    },
  });
  for (const [signal, listener] of all) {
    process.on(signal, listener);
  }
  if (parents.npm !== undefined) {
    whenGone(parents.npm, () => {
      if (!(parents.isUnderNohup && parents.hasHungUp)) {
        interrupt.ask(new SignalError('SIGTERM', 'the end of npm'));
      }
    });
  }
  return interrupt;
}

/**
 * Whether the command was started by nohup, to go on where its terminal is closed. nohup has
 * SIGHUP ignored, which Node undoes as it starts, here and in npm. What is left to tell is the
 * standard input: GNU's nohup puts /dev/null in place of a terminal, open for writing alone.
 */
function isUnderNohup(): boolean {
  try {
    const [, flags = '0'] = /^flags:\s+(\d+)$/m.exec(readFileSync('/proc/self/fdinfo/0', 'utf8'))!;
    const mode = Number.parseInt(flags, 8) & (constants.O_WRONLY | constants.O_RDWR);
    return mode === constants.O_WRONLY && readlinkSync('/proc/self/fd/0') === '/dev/null';
  } catch {
    return false; // another system, or no standard input
  }
}

/**
 * Puts, at the end, /dev/null in the place of terminals that have hung up. Node gives terminals
 * their settings back as it exits, and aborts with a native stack where one of them no longer takes
 * any. A library that flushes its output then would complain of a descriptor that is just closed.
 */
function leaveDeadTerminals(): void {
  const terminals = STANDARD_STREAMS.filter((fd) => isatty(fd));
  process.once('exit', () => {
    for (const fd of terminals.filter((descriptor) => !isatty(descriptor))) {
      closeSync(fd);
      openSync(devNull, 'r+'); // it gets the lowest number that is free, which is this one
    }
  });
}

/**
 * Makes a run outlive what it prints to, and another command end with it. A reader that has seen
 * enough (| head) asks a run to end; a terminal that hung up or a full disk only makes it quiet. At
 * Ctrl-C `2>&1 | tee log` dies first, and so the answer to it, which nobody has read, and the last
 * lines, which say where the run is saved and how it goes on, go to the terminal itself.
 */
function outliveOutput(running: () => Interrupt | undefined): void {
  const isLed = () => running()?.isLed === true;
  const [unread, unreadErrors] = [process.stdout, process.stderr].map(keepLast);
  process.stderr.once('error', ({ code }: NodeJS.ErrnoException) => {
    process.stderr.on('error', () => {});
    redirect(process.stderr, code === 'EPIPE' && isLed() ? ownTerminal() : undefined, unreadErrors);
  });
  process.stdout.once('error', (error: NodeJS.ErrnoException) => {
    process.stdout.on('error', () => {});
    const isRun = isLed();
    if (error.code === 'EPIPE') {
      if (!isRun) {
        process.exit(new SignalError('SIGPIPE').exitCode); // as of a program that the signal ends
      }
      redirect(process.stdout, ownTerminal(), unread);
      running()!.ask(new SignalError('SIGPIPE', 'a closed output'));
      return;
    }
    redirect(process.stdout, undefined);
    const what = `what the command prints can't be written (${describeSystemError(error)})`;
    process.stderr.write(
      isRun ? `warning: ${what}; the run goes on without.\n` : `error: ${what}.\n`,
    );
    if (!isRun) {
      process.exit(1);
    }
  });
}

/**
 * The last two texts that were written to a stream, which a reader that dies may have left unread:
 * the one with which that is noticed, and one that the pipe took before.
 */
function keepLast(stream: NodeJS.WriteStream): readonly string[] {
  const last: string[] = [];
  const write = stream.write.bind(stream) as (...args: readonly unknown[]) => boolean;
  stream.write = (text: string | Uint8Array, ...more: readonly unknown[]) => {
    last.push(typeof text === 'string' ? text : Buffer.from(text).toString());
    last.splice(0, last.length - 2);
    return write(text, ...more);
  };
  return last;
}

/** The terminal from which the process was started, open for writing; undefined without one. */
function ownTerminal(): number | undefined {
  try {
    return openSync('/dev/tty', 'w');
  } catch {
    return undefined;
  }
}

/**
 * Sends `unread`, and what is written to a broken stream from now on, to an open file, or nowhere,
 * and never fails again.
 */
function redirect(
  stream: NodeJS.WriteStream,
  fd: number | undefined,
  unread: readonly string[] = [],
): void {
  stream.write = (text: string | Uint8Array) => {
    try {
      if (fd !== undefined) {
        writeSync(fd, Buffer.from(text));
      }
    } catch {
      // The terminal is gone, too.
    }
    return true;
  };
  for (const text of unread) {
    stream.write(text);
  }
}
