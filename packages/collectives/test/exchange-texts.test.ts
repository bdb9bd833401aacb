// Ranks tell each other small texts and who failed, and compare texts at the cost of a digest.

import {
  agree,
  agreeOnTexts,
  compareTexts,
  createMemoryGroup,
  type Exchange,
  exchangeTexts,
  PeerFailedError,
  type ProcessGroup,
  requireSameText,
} from '@shardweave/collectives';
import { expect, it } from 'vitest';

const CALL = { tag: 'test', identity: 'test()' };

async function onRanks<T>(worldSize: number, body: (group: ProcessGroup) => Promise<T>) {
  const groups = createMemoryGroup(worldSize);
  const results = await Promise.all(groups.map(body));
  await Promise.all(groups.map((group) => group.close()));
  return results;
}

function exchangeOver(group: ProcessGroup): Exchange {
  return (text) => exchangeTexts(group, text, CALL);
}

function toldBy(rank: number, reason: string): string {
  return `load: rank ${rank}/2 failed: ${reason}. This rank stopped with it.`;
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

it('a part that fails throws on all ranks, at the cost of one exchange', async () => {
  const reasons = ['', 'disk full', 'no disk'];
  const all = await onRanks(3, async (group) => {
    const before = group.stats().allGathers;
    const failed = await agree('save', exchangeOver(group), async () => {
      if (reasons[group.rank] !== '') {
        throw new Error(reasons[group.rank]);
      }
    }).catch((error: unknown) => error);
    return { failed, calls: group.stats().allGathers - before };
  });
  const told = 'save: rank 1/3 failed: disk full. This rank stopped with it.';
  expect(all.map(({ failed }) => (failed as Error).message)).toEqual([
    told,
    'disk full',
    'no disk',
  ]);
  expect(all[0]!.failed).toBeInstanceOf(PeerFailedError);
  expect(all[0]!.failed).toMatchObject({ rank: 1, operation: 'save', reason: 'disk full' });
  expect(all.map(({ calls }) => calls)).toEqual([2, 2, 2]);
});

it('a rank that fails before what is agreed on inside stops the others there', async () => {
  const all = await onRanks(2, async (group) => {
    const exchange = exchangeOver(group);
    const outcome = agree('load', exchange, async () => {
      if (group.rank === 1) {
        throw new Error('no file');
      }
      await agree('load', exchange, () => {});
      return 'gathered';
    });
    return outcome.catch((error: Error) => error.message);
  });
  expect(all).toEqual([toldBy(1, 'no file'), 'no file']);
});

it('all ranks hear of all texts, or of the first failure', async () => {
  const texts = ['', 'a\n', 'failure'];
  const all = await onRanks(3, async (group) => {
    const exchange = exchangeOver(group);
    const text = texts[group.rank]!;
    return [
      await agreeOnTexts(exchange, { text }),
      await agreeOnTexts(exchange, text === '' ? { text } : { failure: text }),
    ];
  });
  const failure = { rank: 1, worldSize: 3, reason: 'a\n' };
  expect(all).toEqual(Array.from({ length: 3 }, () => [texts, failure]));
});

it.each([
  ['another text', 'b', ['differ: 1', 'differ: 1'], 'ranks of another replica differ'],
  ['no text', undefined, [toldBy(1, 'no file'), 'no file'], 'no file'],
])('%s of one rank makes the ranks of both replicas throw', async (_, text, first, told) => {
  const all = await onRanks(4, async (group) => {
    const shards = await group.split(group.rank >> 1);
    const replicas = await group.split(group.rank & 1);
    const make = () => {
      if (group.rank === 1 && text === undefined) {
        throw new Error('no file');
      }
      return group.rank === 1 ? text! : 'a';
    };
    const differing = (ranks: readonly number[]) => new Error(`differ: ${ranks.join()}`);
    const exchanges = [exchangeOver(shards), exchangeOver(replicas)];
    const checked = requireSameText('load', exchanges, { make, differing });
    return checked.then(
      () => 'none',
      (error: Error) => error.message,
    );
  });
  expect(all).toEqual([...first, toldBy(0, told), toldBy(0, told)]);
});

it('an exchange that a rank has left says what it was for', async () => {
  const [staying, leaving] = createMemoryGroup(2) as [ProcessGroup, ProcessGroup];
  const exchange = expect(exchangeTexts(staying, 'a', CALL)).rejects;
  await leaving.close();
  await exchange.toMatchObject({
    code: 'PEER_LOST',
    message: "rank 0/2 allGather #0 of 'test()': peer 1 lost (it closed the group)",
  });
  await staying.close();
});
