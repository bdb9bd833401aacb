// A commit of a store waits for the work that was registered to be done before it.

import { storeUseOf } from '@shardweave/nn/flat';
import { createHostStore } from '@shardweave/shard-store';
import { expect, it } from 'vitest';

it('a commit comes after the work that was to be done before it', async () => {
  const store = createHostStore();
  const log: string[] = [];
  const commit = store.commit.bind(store);
  store.commit = () => {
    log.push('commit');
    return commit();
  };
  const use = storeUseOf(store);
  let end: () => void = () => undefined;
  use.awaitBeforeCommit(
    new Promise<void>((resolve) => {
      end = () => {
        log.push('withdrawn');
        resolve();
      };
    }),
  );
  const committed = use.commit();
  await new Promise((resolve) => setImmediate(resolve));
  end();
  await committed;
  expect(log).toEqual(['withdrawn', 'commit']);
});
