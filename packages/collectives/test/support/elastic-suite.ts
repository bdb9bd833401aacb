// What an elastic job does over every transport, for members in one thread: it forms, goes on
// without who leaves, takes a newcomer in, and an epoch computes what all groups do.

import { type Epoch, EpochOverError, type Member } from '@shardweave/collectives/elastic';
import { conformanceCases } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';

/** Stops these members at a step. Resolves with the epoch that they form. */
export async function begin(members: readonly Member[], step = 0): Promise<readonly Epoch[]> {
  return Promise.all(members.map((member) => member.reform({ step })));
}

/** The sum of the ranks' numbers plus one, which shows that the group of an epoch works. */
export async function sums(epochs: readonly Epoch[]): Promise<readonly number[]> {
  return Promise.all(
    epochs.map(async ({ group }) => {
      const own = Float32Array.of(group.rank + 1);
      const sum = new Float32Array(1);
      await group.allReduce(new Uint8Array(own.buffer), new Uint8Array(sum.buffer), {
        dtype: 'f32',
        op: 'sum',
      });
      return sum[0]!;
    }),
  );
}

/** Rejects with the error that ends the epoch. */
export async function untilOver({ group }: Epoch): Promise<never> {
  for (;;) {
    await group.barrier();
  }
}

/** A job, to which members join. */
export interface SuiteJob {
  join(): Promise<Member>;
}

/** @param open begins a job of so many members, which forms soon with fewer */
export function elasticSuite(
  open: (range: { readonly min: number; readonly max: number }) => Promise<SuiteJob>,
): void {
  it('forms, goes on without who leaves, and takes a newcomer in', async () => {
    const job = await open({ min: 1, max: 4 });
    const members = await Promise.all([job.join(), job.join(), job.join()]);
    const first = await begin(members);
    expect(first.map(({ group }) => group.id)).toEqual(Array(3).fill('world@1'));
    expect(await sums(first)).toEqual([6, 6, 6]);

    const [gone, ...staying] = members as [Member, Member, Member];
    const pending = staying.map((member) =>
      first[members.indexOf(member)]!.group.barrier().catch((error: unknown) => error),
    );
    await gone.leave();
    for (const outcome of await Promise.all(pending)) {
      expect(outcome).toBeInstanceOf(EpochOverError);
    }
    const second = await begin(staying, 5);
    expect(second[0]).toMatchObject({ number: 2, left: [gone.id], joined: [], step: 5 });
    expect(await sums(second)).toEqual([3, 3]);

    const newcomer = await job.join();
    const entering = newcomer.reform({ step: 0 });
    while (!staying.every(({ isChangeDue }) => isChangeDue)) {
      await sums(second);
    }
    const third = await Promise.all([...staying.map((one) => one.reform({ step: 6 })), entering]);
    expect(third[2]).toMatchObject({ number: 3, joined: [newcomer.id], step: 6 });
    expect(third[2]!.members[third[2]!.source]!.step).toBe(6);
    expect(await sums(third)).toEqual([6, 6, 6]);
  });

  it('an epoch has the results of all transports', async () => {
    const transcript = conformanceCases.find(
      ({ name }) => name === 'results are those of the committed hashes',
    )!;
    const harness = {
      name: 'an epoch',
      worldSizes: [3],
      create: async (worldSize: number) => {
        const job = await open({ min: worldSize, max: worldSize });
        const members = await Promise.all(Array.from({ length: worldSize }, () => job.join()));
        return (await begin(members)).map(({ group }) => ({ group, kill: () => {} }));
      },
    };
    await transcript.run(harness, 3);
  });
}
