// Ranks tell each other small texts and who failed, and compare texts at the cost of a digest.

import {
  agree,
  agreeOnTexts,
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

it('tells all ranks the first one that failed, at the cost of one exchange', async () => {
  const reasons = ['', 'disk full', 'no disk'];
  const all = await onRanks(3, async (group) => {
    const before = group.stats().allGathers;
    const reason = reasons[group.rank]!;
    const heard = await agree(group, reason, CALL);
    const told = await agreeOnTexts(
      group,
      reason === '' ? { text: 'a' } : { failure: reason },
      CALL,
    );
    return { heard, told, calls: group.stats().allGathers - before };
  });
  const failure = { rank: 1, reason: 'disk full' };
  expect(all).toEqual(
    Array.from({ length: 3 }, () => ({ heard: failure, told: failure, calls: 4 })),
  );
});

it('tells of no failure where there is none, but of all texts', async () => {
  const texts = ['', 'a\n', 'failure'];
  const all = await onRanks(3, async (group) => [
    await agree(group, '', CALL),
    await agreeOnTexts(group, { text: texts[group.rank]! }, CALL),
  ]);
  expect(all).toEqual([1, 2, 3].map(() => [undefined, texts]));
});
