// A process of an elastic job: a member that does steps until it is told to leave, or the job's
// coordinator. elastic-job.ts bundles and starts it.

import {
  type JoinElasticOptions,
  joinElastic,
  type ServeElasticOptions,
  serveElastic,
} from '@shardweave/collectives/elastic';
import { ElasticCounting, type ElasticWord, failedWord, type Unstamped } from './elastic-member.js';

export type ElasticOrder =
  | { readonly type: 'join'; readonly options: JoinElasticOptions }
  | { readonly type: 'serve'; readonly options: ServeElasticOptions }
  | { readonly type: 'leave' };

function say(word: Unstamped<ElasticWord>): void {
  process.send!({ ...word, atMs: Date.now() });
}

let elastic: ElasticCounting | undefined;

async function join(options: JoinElasticOptions): Promise<void> {
  try {
    const member = await joinElastic(options);
    elastic = new ElasticCounting(member, say);
    await elastic.run();
    process.disconnect(); // nothing else may keep the process alive
  } catch (error) {
    say(failedWord(error));
  }
}

process.on('message', (order: ElasticOrder) => {
  if (order.type === 'join') {
    void join(order.options);
  } else if (order.type === 'leave') {
    elastic?.leave();
  } else {
    serveElastic(order.options).then(
      ({ port }) => say({ type: 'listening', port }),
      (error: unknown) => say(failedWord(error)),
    );
  }
});
say({ type: 'ready' });
