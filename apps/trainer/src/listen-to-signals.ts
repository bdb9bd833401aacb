// Signals that ask a command to end.

import { InterruptedError, SignalError } from './errors.js';

/** A second signal doesn't wait: rank processes leave with this one. */
export function listenToSignals(): { readonly signal: AbortSignal; dispose(): void } {
  const stop = new AbortController();
  const onSignal = (signal: NodeJS.Signals) => {
    const reason =
      signal === 'SIGINT' ? new InterruptedError('stopped by Ctrl-C') : new SignalError(signal);
    if (stop.signal.aborted) {
      process.exit(reason.exitCode);
    }
    stop.abort(reason);
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) {
    process.on(signal, onSignal);
  }
  return {
    signal: stop.signal,
    dispose: () => {
      for (const signal of signals) {
        process.off(signal, onSignal);
      }
    },
  };
}
