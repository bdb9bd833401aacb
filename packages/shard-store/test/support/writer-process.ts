// This process owns a directory: `node writer-process.mjs DIRECTORY [PLAN]`. Without a plan it
// opens the store and keeps it. With one it writes steps, prints the number of each step that it
// has committed, and kills itself before one file call, so that the plan alone says where the kill
// falls. owners.test.ts bundles and starts it.

import { basename } from 'node:path';
import { type FileLayer, nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { BYTES, KEYS, type KillPlan } from './kill-plan.js';

/** The bytes of a manifest that one call writes, so that a kill can fall inside it. */
const MANIFEST_PIECE_BYTES = 64;

const [directory = '', planText] = process.argv.slice(2);
if (planText === undefined) {
  await keep();
} else {
  await train(JSON.parse(planText) as KillPlan);
}

async function keep(): Promise<void> {
  await openDiskStore({ directory });
  console.log('open');
  setInterval(() => {}, 2 ** 30);
}

async function train(plan: KillPlan): Promise<void> {
  const { numSteps, operation, fsync = false, maxConcurrent = 1 } = plan;
  const file = new RegExp(plan.file);
  let left = Number.POSITIVE_INFINITY;
  const files = interceptFiles((call) => {
    if (call.operation !== operation || !file.test(basename(call.path))) {
      return;
    }
    if (left-- === 0) {
      process.kill(process.pid, 'SIGKILL');
    }
  }, pieceByPiece(nodeFiles));
  const store = await openDiskStore({ directory, fsync, maxConcurrent, files });
  const first = store.generation + 1;
  for (let step = first; step <= first + numSteps; step++) {
    if (step === first + numSteps) {
      left = plan.skip ?? 0;
    }
    await Promise.all(KEYS.map((key) => store.write(key, new Uint8Array(BYTES).fill(step))));
    await store.write(`only in step ${step}`, Uint8Array.of(step));
    await store.delete(`only in step ${step - 1}`);
    await store.commit();
    console.log(step);
  }
}

/** Writes manifests in small pieces, and values as they come. */
function pieceByPiece(files: FileLayer): FileLayer {
  return {
    ...files,
    openToWrite: async (path) => {
      const file = await files.openToWrite(path);
      if (!basename(path).includes('manifest')) {
        return file;
      }
      const write: typeof file.write = (bytes, position) =>
        file.write(bytes.subarray(0, MANIFEST_PIECE_BYTES), position);
      return { ...file, write };
    },
  };
}
