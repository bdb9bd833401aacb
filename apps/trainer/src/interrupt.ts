// The wish that a command ends, from whatever expresses it: signals, a closed output, npm's end.

import type { SignalError } from './errors.js';

/**
 * The time within which signals are one wish. A terminal, a shell, npm and a supervisor each pass
 * on the same Ctrl-C or end of a session, within moments even on a busy machine; a person who has
 * read the answer to the first takes longer.
 */
const AGAIN_MS = 500;

export interface InterruptOptions {
  /** Ends the process at once. */
  readonly exit: (code: number) => void;
  /** A clock in milliseconds. Default performance.now. */
  readonly now?: () => number;
  /** Called when nobody looks at it any more. */
  readonly onDispose?: () => void;
}

export class Interrupt implements Disposable {
  readonly #options: InterruptOptions;
  readonly #stop = new AbortController();
  readonly #wrapUp = new AbortController();
  #decide: ((wish: SignalError) => boolean) | undefined;
  #asked: SignalError | undefined;
  #askedMs = 0;

  constructor(options: InterruptOptions) {
    this.#options = options;
  }

  /** Ends what the command does; the reason is a SignalError. */
  get signal(): AbortSignal {
    return this.#stop.signal;
  }

  /** Ends a run after its present step, or its results where all steps are done. */
  get wrapUp(): AbortSignal {
    return this.#wrapUp.signal;
  }

  /** By what the command was asked to end; undefined while it was not. */
  get asked(): SignalError | undefined {
    return this.#asked;
  }

  /** Whether a run leads, which outlives its reader and its terminal. */
  get isLed(): boolean {
    return this.#decide !== undefined;
  }

  /** Lets a run decide whether a wish wraps it up; without one a wish ends at once. */
  lead(decide: (wish: SignalError) => boolean): void {
    this.#decide = decide;
  }

  /**
   * Asks the command to end. It never counts as a second wish: of a terminal that is closed, a
   * reader, the shell and the kernel each tell, and nobody insists.
   */
  ask(wish: SignalError): void {
    const isFirst = this.#asked === undefined;
    if (isFirst || this.#asked?.signal === 'SIGPIPE') {
      this.#asked = wish; // a signal tells more than the broken pipe before it: `| tee` dies first
      this.#askedMs = this.#now();
    }
    if (isFirst) {
      const isPatient = this.#decide?.(wish) === true;
      (isPatient ? this.#wrapUp : this.#stop).abort(wish);
    }
  }

  /** Asks the command to end, and ends the process where a person asks for the second time. */
  insist(wish: SignalError): void {
    const isAgain = this.#asked !== undefined && this.#asked.signal !== 'SIGPIPE';
    if (isAgain && this.#now() - this.#askedMs >= AGAIN_MS) {
      this.#options.exit(wish.exitCode);
    }
    this.ask(wish);
  }

  /** Gives up listening: signals end the process by themselves until the command listens again. */
  [Symbol.dispose](): void {
    this.#options.onDispose?.();
  }

  #now(): number {
    return (this.#options.now ?? (() => performance.now()))();
  }
}
