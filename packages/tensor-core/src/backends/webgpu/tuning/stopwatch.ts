// Measures how long commands take on the device. Where the device has timestamps they are taken
// around a whole pass, so that the rounding of browsers is small against it. Elsewhere the host's
// clock is read around a submit and the wait for it, which is late by up to a millisecond.

import type { BackendTraceSink } from '../../../backend.js';
import type { Recorder } from '../queue/recorder.js';
import type { Timestamps } from '../queue/timestamps.js';

export interface Stopwatch {
  /** The ms below which work is repeated to be timed, because the clock is too coarse for it. */
  readonly leastMs: number;
  /** The ms that the device takes for what `encode` queues, with nothing else to do. */
  time(encode: () => void): Promise<number>;
}

/** The least time that timestamps measure well, since browsers round them to 0.1 ms. */
const LEAST_MS_OF_TIMESTAMPS = 4;
/** The least time that the host's clock measures well, since a wait is late by a millisecond. */
const LEAST_MS_OF_HOST = 40;

export interface StopwatchParts {
  readonly recorder: Recorder;
  /** Waits for all that is queued. */
  sync(): Promise<void>;
  /** The times of passes; undefined where the device has no timestamps. */
  timestamps(sink: BackendTraceSink): Timestamps | undefined;
}

/**
 * Runs `body` with a stopwatch, which takes the recorder's timestamps from whoever traces
 * meanwhile.
 */
export async function withStopwatch(
  { recorder, sync, timestamps: open }: StopwatchParts,
  body: (stopwatch: Stopwatch) => Promise<void>,
): Promise<void> {
  let passesMs = 0;
  const timestamps = open(({ startMs, endMs }) => {
    passesMs += endMs - startMs;
  });
  const leastMs = timestamps === undefined ? LEAST_MS_OF_HOST : LEAST_MS_OF_TIMESTAMPS;
  const time = async (encode: () => void) => {
    await sync();
    const traced = recorder.timestamps;
    recorder.timestamps = timestamps;
    passesMs = 0;
    const start = performance.now();
    try {
      encode();
      await sync();
    } finally {
      recorder.timestamps = traced;
    }
    return timestamps === undefined ? performance.now() - start : passesMs;
  };
  try {
    await body({ leastMs, time });
  } finally {
    timestamps?.destroy();
  }
}

/** Returns the middle value, or the mean of the two middle ones. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1]! + sorted[Math.floor(half)]!) / 2;
}
