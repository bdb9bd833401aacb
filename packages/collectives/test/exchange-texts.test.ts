// Ranks tell each other small texts, and compare them at the cost of a digest.

import {
  compareTexts,
  createMemoryGroup,
  exchangeTexts,
  type ProcessGroup,
} from '@shardweave/collectives';
import { expect, it } from 'vitest';

const CALL = { tag: 'test', identity: 'test()' };

async function onRanks<T>(worldSize: number, body: (group: ProcessGroup) => Promise<T>) {
  const groups = createMemoryGroup(worldSize);
  const results = await Promise.all(groups.map(body));
  await Promise.all(groups.map((group) => group.close()));
  return results;
}

it('exchanges texts of unequal lengths, empty ones too, in rank order', async () => {
  const texts = ['', 'a\u00e4\u{1f600}', 'bb'];
  const all = await onRanks(3, (group) => exchangeTexts(group, texts[group.rank]!, CALL));
  expect(all).toEqual([texts, texts, texts]);
});

it('compares by one message, and sends the texts that differ alone', async () => {
  const given = [
    ['same', 'ab', ''],
    ['same', 'ba', ''],
    ['same', 'ab', 'x'],
  ];
  const all = await onRanks(3, async (group) => {
    const before = group.stats().allGathers;
    const found = await compareTexts(group, given[group.rank]!, CALL);
    return { found, calls: group.stats().allGathers - before };
  });
  for (const { found, calls } of all) {
    expect(found).toEqual([undefined, ['ab', 'ba', 'ab'], ['', '', 'x']]);
    expect(calls).toBe(3);
  }
});

it('sends nothing on one rank', async () => {
  await onRanks(1, async (group) => {
    expect(await exchangeTexts(group, 'a', CALL)).toEqual(['a']);
    expect(await compareTexts(group, ['a', 'b'], CALL)).toEqual([undefined, undefined]);
    expect(group.stats().allGathers).toBe(0);
  });
});
