// Measured tiles in the page's database.
import { indexedDbTuningStore, type MatmulChoiceTable } from '@shardweave/tensor-core/webgpu';

/** What two stores read of what each other wrote, and of what nobody did. */
export async function keepTiles(
  table: MatmulChoiceTable,
): Promise<readonly (MatmulChoiceTable | undefined)[]> {
  const [one, other] = [indexedDbTuningStore(), indexedDbTuningStore()];
  const before = await one.read('adapter');
  await one.write('adapter', { ...table, old: 'tile' });
  await other.write('adapter', table);
  return [before, await one.read('adapter'), await other.read('another')];
}
