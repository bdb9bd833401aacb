// Collects timed events of one rank and writes them as a Chrome trace, which Perfetto opens.
// Tracks: main (ranges of the program), collectives, device (kernels) and staging.

/**
 * The row of a trace in which an event is shown: `main` has ranges of the program, `collectives`
 * messages between ranks, `device` kernels, and `staging` copies to and from the host.
 */
export type TraceTrack = 'main' | 'collectives' | 'device' | 'staging';

import { checkOptions } from './check-options.js';
import { endingWith } from './ending-with.js';
import { whole } from './options.js';

/** A timed event. Its times are in milliseconds on the clock of performance.now(). */
export interface TraceEvent {
  readonly name: string;
  readonly track: TraceTrack;
  readonly startMs: number;
  readonly endMs: number;
  readonly args?: Readonly<Record<string, string | number>>;
}

const TRACKS: readonly TraceTrack[] = ['main', 'collectives', 'device', 'staging'];

/** The events of one rank. */
export class Trace {
  readonly rank: number;
  readonly events: TraceEvent[] = [];

  constructor(options: { readonly rank?: number } = {}) {
    checkOptions<{ rank: number }>('Trace', options, { rank: whole(0) });
    this.rank = options.rank ?? 0;
  }

  add(event: TraceEvent): void {
    this.events.push(event);
  }

  /** Times `body`, which may be asynchronous, as a range. */
  range<T>(name: string, body: () => T, track: TraceTrack = 'main'): T {
    const startMs = performance.now();
    const end = () => this.add({ name, track, startMs, endMs: performance.now() });
    return endingWith(end, body);
  }
}

/**
 * Returns the events of several ranks as the text of one Chrome trace, with a process per rank and
 * a thread per track. Overlapping events of one track get lanes of their own.
 */
export function chromeTrace(traces: readonly Trace[]): string {
  const out: object[] = [];
  for (const trace of traces) {
    out.push({
      ph: 'M',
      pid: trace.rank,
      name: 'process_name',
      args: { name: `rank ${trace.rank}` },
    });
    TRACKS.forEach((track, trackIndex) => {
      const laneEnds: number[] = [];
      const events = trace.events
        .filter((event) => event.track === track)
        .sort((a, b) => a.startMs - b.startMs || b.endMs - a.endMs);
      for (const event of events) {
        // Ranges of the main track nest. Events of other tracks may overlap and then need lanes.
        let lane = 0;
        if (track !== 'main') {
          lane = laneEnds.findIndex((end) => end <= event.startMs);
          if (lane < 0) {
            lane = laneEnds.length;
          }
        }
        laneEnds[lane] = event.endMs;
        out.push({
          ph: 'X',
          pid: trace.rank,
          tid: trackIndex * 100 + lane,
          name: event.name,
          cat: track,
          ts: event.startMs * 1000,
          dur: (event.endMs - event.startMs) * 1000,
          ...(event.args === undefined ? {} : { args: event.args }),
        });
      }
      laneEnds.forEach((_, lane) => {
        const name = lane === 0 ? track : `${track} ${lane + 1}`;
        const tid = trackIndex * 100 + lane;
        out.push({ ph: 'M', pid: trace.rank, tid, name: 'thread_name', args: { name } });
      });
    });
  }
  return JSON.stringify({ traceEvents: out, displayTimeUnit: 'ms' });
}
