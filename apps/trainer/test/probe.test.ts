import { expect, it } from 'vitest';
import { readFileSync, rmSync, readdirSync } from 'node:fs';
import { createReferenceBackend } from '../../../packages/tensor-core/src/backends/reference/index.js';
import { createMemoryGroup } from '@shardweave/collectives';
import { runInMemory } from '../src/launch/run-in-memory.js';
import { runRank } from '../src/rank/run-rank.js';
import { parseFlags } from '../src/flags.js';
import { resolveConfig } from '../src/resolve-config.js';

const ROOT = new URL('../../../', import.meta.url).pathname;
const { cases } = JSON.parse(readFileSync(`${ROOT}tooling/reference/data/tiny/expected.json`, 'utf8'));
const BASE = cases.filter((c: any)=>/plain/.test(c.name));
const N = 5;
it.each([[0, '--ranks 2'], [1, '--ranks 3'], [0, '--ranks 4 --checkpoint-activations --no-reshard'], [2, '--ranks 2 --fp32-reduce'],[0,'--strategy single']] as [number,string][])('probe %s %s', async (i, extra) => {
  const c = BASE[i];
  rmSync('/tmp/probe-out', {recursive: true, force: true});
  const config = await resolveConfig(parseFlags([...c.flags.map((f: string) => f.startsWith('tooling/') ? ROOT + f : f), '--steps', String(N), '--out', '/tmp/probe-out', '--quiet', ...extra.split(' ')], () => {}));
  let worst = 0; let n = 0;
  const worlds = createMemoryGroup(config.ranks);
  const host = { open: async () => createReferenceBackend() } as never;
  await runInMemory({ ranks: config.ranks, signal: new AbortController().signal,
    onEvent: (e) => { if (e.type === 'step') { n++; worst = Math.max(worst, Math.abs(e.metrics.loss / c.losses[e.metrics.step - 1] - 1)); }
      else if (e.type !== 'trace') console.log(JSON.stringify(e)); },
    work: (rank, emit, signal) => runRank({ config, rank, world: worlds[rank]!, host, emit, signal }) });
  console.log(c.name, extra, n, worst, readdirSync('/tmp/probe-out/model'));
  expect(worst).toBeLessThan(i === 0 ? 2e-4 : 5e-3);
}, 200000);
