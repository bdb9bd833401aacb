// Flats that rest off the device are fetched, used and stored in a fixed order.

import { type FlatPart, visitFlats } from '@shardweave/nn/flat';
import { describe, expect, it } from 'vitest';

describe('visitFlats', () => {
  /**
   * Turns that record each call. The promise of a call settles one or more turns of the event loop
   * later.
   */
  function watchedTurns(count: number, failing: readonly string[] = [], storeTurns = 1) {
    const events: string[] = [];
    const part = undefined as unknown as FlatPart; // Nothing here reads it.
    const note = async (event: string) => {
      events.push(event);
      for (let turn = event.startsWith('store') ? storeTurns : 1; turn > 0; turn--) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      if (failing.includes(event)) {
        throw new Error(event);
      }
      events.push(`${event} done`);
    };
    const turns = Array.from({ length: count }, (_, index) => ({
      start: () => {
        events.push(`start ${index}`);
        return {
          load: () => note(`load ${index}`),
          run: async (use: (part: FlatPart) => void) => use(part),
          store: () => note(`store ${index}`),
          isKept: false,
          drop: () => void events.push(`drop ${index}`),
        };
      },
      use: () => {
        events.push(`use ${index}`);
        if (failing.includes(`use ${index}`)) {
          throw new Error(`use ${index}`);
        }
      },
      isChanging: true,
    }));
    return { turns, events };
  }

  it('starts the next while one is loaded and used, and lets the last one leave meanwhile', async () => {
    const { turns, events } = watchedTurns(3);
    await visitFlats(turns, 1);
    expect(events).toEqual([
      ...['start 0', 'start 1', 'load 0', 'load 0 done', 'use 0', 'store 0'],
      ...['start 2', 'load 1', 'store 0 done', 'load 1 done', 'use 1', 'store 1'],
      ...['load 2', 'store 1 done', 'load 2 done', 'use 2', 'store 2', 'store 2 done'],
    ]);
  });

  it.each([0, 1, 3])(
    'no more than %i ahead come beside the one in use, and leave',
    async (ahead) => {
      const { turns, events } = watchedTurns(8, [], 30);
      await visitFlats(turns, ahead);
      let [coming, leaving, mostComing, mostLeaving] = [0, 0, 0, 0];
      for (const event of events) {
        if (event.startsWith('start')) {
          mostComing = Math.max(mostComing, ++coming);
        }
        if (event.startsWith('use')) {
          coming--;
        }
        if (/^store \d$/.test(event)) {
          mostLeaving = Math.max(mostLeaving, ++leaving);
        }
        if (/^store \d done/.test(event)) {
          leaving--;
        }
      }
      expect([mostComing, mostLeaving, leaving]).toEqual([ahead + 1, ahead + 1, 0]);
    },
  );

  it.each(['load 1', 'use 1'])(
    'no more come after a failed %s, and those before are kept',
    async (at) => {
      const { turns, events } = watchedTurns(4, [at]);
      await expect(visitFlats(turns, 1)).rejects.toThrow(at);
      expect(events).toContain('store 0 done');
      expect(events.filter((event) => event.startsWith('drop'))).toEqual(['drop 1', 'drop 2']);
      expect(events).not.toContain('start 3');
    },
  );

  it('no more are used after a failed store, those that were still leave, and it is told', async () => {
    const { turns, events } = watchedTurns(6, ['store 1', 'store 2']);
    await expect(visitFlats(turns, 1)).rejects.toThrow('store 1');
    expect(events).toContain('store 0 done');
    const used = events.filter((event) => event.startsWith('use'));
    const left = events.filter((event) => /^store \d$/.test(event));
    expect(left).toHaveLength(used.length);
    expect(used.length).toBeLessThan(6);
    expect(events.filter((event) => event.startsWith('drop')).length).toBeGreaterThanOrEqual(1);
  });
});
