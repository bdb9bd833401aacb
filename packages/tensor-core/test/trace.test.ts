// These tests check what traces collect, and that Perfetto accepts their Chrome form.

import { chromeTrace, Trace } from '@shardweave/tensor-core';
import { describe, expect, test } from 'vitest';

interface ChromeEvent {
  readonly ph: string;
  readonly pid: number;
  readonly tid?: number;
  readonly name: string;
  readonly ts?: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly args?: Readonly<Record<string, string | number>>;
}

function parse(...traces: readonly Trace[]): ChromeEvent[] {
  const parsed = JSON.parse(chromeTrace(traces)) as { traceEvents: ChromeEvent[] };
  return parsed.traceEvents;
}

const timed = (events: readonly ChromeEvent[]) => events.filter(({ ph }) => ph === 'X');
const endOf = (event: ChromeEvent) => event.ts! + event.dur!;

describe('ranges', () => {
  test('time synchronous and asynchronous bodies, return their results, and nest', async () => {
    const trace = new Trace();
    const result = await trace.range('step', async () => {
      const forward = trace.range('forward', () => 5);
      await new Promise((resolve) => setTimeout(resolve, 5));
      return trace.range('backward', async () => forward + 1);
    });
    expect(result).toBe(6);
    const events = timed(parse(trace));
    const step = events.find(({ name }) => name === 'step')!;
    expect(step.dur).toBeGreaterThan(4000); // The unit is microseconds.
    for (const event of events) {
      expect(event.tid).toBe(step.tid);
      expect(event.ts).toBeGreaterThanOrEqual(step.ts!);
      expect(endOf(event)).toBeLessThanOrEqual(endOf(step) + 1e-3);
    }
    expect(events.map(({ name }) => name)).toEqual(['step', 'forward', 'backward']);
  });

  test('end also where the body fails', async () => {
    const trace = new Trace();
    const fail = () => {
      throw new Error('inside');
    };
    expect(() => trace.range('at once', fail)).toThrow('inside');
    await expect(trace.range('later', async () => fail())).rejects.toThrow('inside');
    expect(trace.events.map(({ name }) => name)).toEqual(['at once', 'later']);
  });
});

describe('the Chrome form', () => {
  test('has a process a rank, a thread a track, metadata that names them', () => {
    const traces = [new Trace({ rank: 0 }), new Trace({ rank: 3 })];
    for (const trace of traces) {
      trace.add({ name: 'range', track: 'main', startMs: 1, endMs: 2 });
      const args = { bytes: 4096, unit: '"quoted"' };
      trace.add({ name: 'allGather', track: 'collectives', startMs: 1.5, endMs: 3, args });
    }
    const events = parse(...traces);
    const named = (kind: string) => events.filter(({ ph, name }) => ph === 'M' && name === kind);
    expect(named('process_name').map(({ pid, args }) => [pid, args!.name])).toEqual([
      [0, 'rank 0'],
      [3, 'rank 3'],
    ]);
    for (const pid of [0, 3]) {
      const threads = named('thread_name').filter((event) => event.pid === pid);
      const byTid = new Map(threads.map(({ tid, args }) => [tid, args!.name]));
      const mine = timed(events).filter((event) => event.pid === pid);
      expect(mine.map(({ tid, name }) => [byTid.get(tid), name])).toEqual([
        ['main', 'range'],
        ['collectives', 'allGather'],
      ]);
      expect(mine[1]).toMatchObject({ ts: 1500, dur: 1500, cat: 'collectives' });
      expect(mine[1]!.args).toEqual({ bytes: 4096, unit: '"quoted"' });
    }
  });

  test('gives overlapping events lanes of their own, and uses each lane again', () => {
    const trace = new Trace();
    const spans = [
      [0, 10],
      [2, 4],
      [3, 12],
      [4, 6],
      [10, 11],
      [11, 20],
      [12, 13],
    ] as const;
    for (const track of ['collectives', 'device', 'staging'] as const) {
      spans.forEach(([startMs, endMs], i) => {
        trace.add({ name: `${i}`, track, startMs, endMs });
      });
    }
    const events = timed(parse(trace));
    for (const track of ['collectives', 'device', 'staging']) {
      const mine = events.filter(({ cat }) => cat === track);
      expect(mine).toHaveLength(spans.length);
      const lanes = new Set(mine.map(({ tid }) => tid));
      expect(lanes.size).toBe(3); // Never more than three overlap.
      for (const lane of lanes) {
        const inLane = mine.filter(({ tid }) => tid === lane).sort((a, b) => a.ts! - b.ts!);
        for (let i = 1; i < inLane.length; i++) {
          expect(inLane[i]!.ts).toBeGreaterThanOrEqual(endOf(inLane[i - 1]!));
        }
      }
    }
    expect(new Set(events.map(({ tid }) => tid)).size).toBe(9);
  });

  test('is a trace even without events', () => {
    expect(timed(parse())).toEqual([]);
    expect(timed(parse(new Trace()))).toEqual([]);
  });
});
