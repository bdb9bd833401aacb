// Signals that ask a command to end.

import { InterruptedError, SignalError } from './errors.js';

export interface Interrupt {
  /** Ends what the command does, with its reason. */
  readonly signal: AbortSignal;
  /** Ends a run after the step that is on its way, with a save; the reason is the signal's. */
  readonly wrapUp: AbortSignal;
  /** From now on the first signal asks to wrap up. */
  allowWrapUp(): void;
}

/** A second signal doesn't wait: rank processes leave with this one. */
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
