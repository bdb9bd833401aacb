// Listens to the signals that ask a command to end.

import { InterruptedError, SignalError } from './errors.js';

export interface Interrupt {
  /** Ends what the command does; the reason says why. */
  readonly signal: AbortSignal;
  /** Ends a run after the present step, with a save; the reason is the signal's. */
  readonly wrapUp: AbortSignal;
  /** Makes the first signal ask to wrap up from now on. */
  allowWrapUp(): void;
}

/** Listens to the signals. A second signal ends the process at once, and rank processes with it. */
export function listenToSignals(): Interrupt {
  const stop = new AbortController();
  const wrapUp = new AbortController();
  let isPatient = false;
  const onSignal = (signal: NodeJS.Signals) => {
    const reason = signal === 'SIGINT' ? new InterruptedError() : new SignalError(signal);
    if (stop.signal.aborted || wrapUp.signal.aborted) {
      process.exit(reason.exitCode);
    }
    (isPatient ? wrapUp : stop).abort(reason);
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, onSignal);
  }
  return {
    signal: stop.signal,
    wrapUp: wrapUp.signal,
    allowWrapUp: () => {
      isPatient = true;
    },
  };
}
