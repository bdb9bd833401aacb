// How long commands take on the device. By its timestamps where it has them, around a whole pass,
// so that what browsers round them to is small against it; else by the host's clock, around a
// submit and the wait for it, which is late by up to a millisecond.

import type { BackendTraceSink } from '../../backend.js';
import type { Recorder } from './recorder.js';
import type { Timestamps } from './timestamps.js';

export interface Stopwatch {
  /** The ms below which work is repeated to be timed, because the clock is too coarse for it. */
  readonly leastMs: number;
  /** The ms that the device takes for what `encode` queues, with nothing else to do. */
  time(encode: () => void): Promise<number>;
}

/** Browsers round timestamps to 0.1 ms. */
const LEAST_MS_OF_TIMESTAMPS = 4;
/** A wait is late by a millisecond. */
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

/** The middle one, or the mean of both. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1]! + sorted[Math.floor(half)]!) / 2;
}
