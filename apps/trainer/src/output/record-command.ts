// --on-step: a command that gets each record of the run as a line of JSON, for W&B, MLflow or a
// script of one's own.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import type { RunListener } from './run-recorder.js';
import type { RunRecord } from './run-records.js';

/** The records of some ten thousand steps; a command that is further behind has stopped reading. */
const BEHIND_BYTES = 8 * 2 ** 20;
/** The time that the command may take for its own end, such as an upload. */
const END_MS = 30_000;

export interface RecordCommandOptions {
  readonly command: string;
  readonly env: NodeJS.ProcessEnv;
  /** Called with what a person should know; the run goes on. */
  readonly onWarning: (text: string) => void;
  /** Default: END_MS. */
  readonly endMs?: number;
}

export class RecordCommand implements RunListener, AsyncDisposable {
  readonly #options: RecordCommandOptions;
  readonly #child: ChildProcess;
  /** Resolves when the command is gone. */
  readonly #gone: Promise<unknown>;
  #hasWarned = false;
  #isEnding = false;

  /**
   * Starts the command by the shell, in a process group of its own: a Ctrl-C ends the run, whose
   * last records it still gets. What it prints goes where errors go.
   */
  constructor(options: RecordCommandOptions) {
    this.#options = options;
    const { command, env } = options;
    this.#child = spawn(command, { shell: true, detached: true, env, stdio: ['pipe', 2, 2] });
    this.#child.stdin!.on('error', () => {}); // its end tells more
    this.#gone = once(this.#child, 'close').then(
      ([code, signal]) => this.#ended(code ?? signal),
      (error: Error) => this.#warn(`can't be started (${error.message})`),
    );
  }

  readonly onRecord = (record: RunRecord): void => {
    const stdin = this.#child.stdin!;
    if (!stdin.writable) {
      return;
    }
    if (stdin.writableLength > BEHIND_BYTES) {
      this.#warn('reads too slowly, and gets no more records');
      stdin.destroy();
      return;
    }
    stdin.write(`${JSON.stringify(record)}\n`);
  };

  /** Tells the command that the run is over, and waits until it has ended. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isEnding = true;
    this.#child.stdin!.end();
    const { endMs = END_MS } = this.#options;
    const limit = new AbortController();
    const isLate = delay(endMs, true, { signal: limit.signal }).catch(() => false);
    if ((await Promise.race([this.#gone, isLate])) === true) {
      this.#warn(`has not ended ${endMs / 1000} s after the run, and is ended now`);
      this.#kill();
      await this.#gone;
    }
    limit.abort();
  }

  #ended(how: number | NodeJS.Signals): void {
    if (how !== 0) {
      this.#warn(`ended with ${typeof how === 'number' ? `exit code ${how}` : how}`);
    } else if (!this.#isEnding) {
      this.#warn('ended before the run');
    }
  }

  #warn(what: string): void {
    if (!this.#hasWarned) {
      this.#hasWarned = true;
      this.#options.onWarning(`--on-step: the command ${what}. The run needs it for nothing.`);
    }
  }

  /** Ends the shell and what it has started. */
  #kill(): void {
    try {
      process.kill(-this.#child.pid!, 'SIGKILL');
    } catch {
      // It ended in this moment.
    }
  }
}
