// Keeps measured tiles in the page's database.
import { indexedDbTuningStore, type MatmulChoiceTable } from '@shardweave/tensor-core/webgpu';

/**
 * What each of two stores reads of what the other wrote, and of something that was never written.
 */
export async function keepTiles(
  table: MatmulChoiceTable,
): Promise<readonly (MatmulChoiceTable | undefined)[]> {
  const [one, other] = [indexedDbTuningStore(), indexedDbTuningStore()];
  const before = await one.read('adapter');
  await one.write('adapter', { ...table, old: 'tile' });
  await other.write('adapter', table);
  return [before, await one.read('adapter'), await other.read('another')];
}
