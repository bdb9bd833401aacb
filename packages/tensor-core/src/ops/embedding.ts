// The lookup of an embedding: rows of a table, chosen by integer ids.

import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { runDecode } from './blocks.js';
import { requireFloat, requireInteger, requireSameDevice, shapeText } from './checks.js';
import { gradientPlace } from './gradient-place.js';

/**
 * The rows of the table [rows, cols] that the ids (i32, u32, any shape) name, as a tensor
 * [...ids.shape, cols]. An id outside the table gives a row of zeros and no gradient. A table may
 * be larger than one binding of a GPU; it is then read in blocks of rows.
 * @throws {ShapeError} when the table has not two axes
 * @throws {DTypeError} when the table is no float tensor, or the ids are no integers
 */
export function embedding(table: Tensor, ids: Tensor): Tensor {
  requireFloat('embedding', table);
  requireInteger('embedding', ids);
  requireSameDevice('embedding', table, ids);
  const [rows, cols] = table.shape;
  if (table.rank !== 2 || rows === undefined || cols === undefined) {
    throw new ShapeError(
      `embedding: expected a table [rows, cols], got ${shapeText(table.shape)}. The table comes first, the ids second.`,
    );
  }
  const { device } = table;
  const count = ids.size;
  const out = device.empty([...ids.shape, cols], { dtype: table.dtype });
  const { blocks } = table;
  if (out.size > 0 && blocks !== undefined) {
    const places = { ids: ids.view(), firstRow: 0, count, firstColumn: 0, columns: cols };
    runDecode(table, out.view(), places);
  } else if (out.size > 0) {
    device.run('embedding', {
      table: table.view(),
      ids: ids.view(),
      out: out.view(),
      rows,
      cols,
      count,
    });
  }
  device.record({
    name: 'embedding',
    inputs: [table],
    outputs: [out],
    saved: [ids],
    backward: ([dy]) => {
      if (count === 0) {
        return [device.zeros(table.shape, { dtype: table.dtype })];
      }
      const dTable = gradientPlace(table);
      if (dTable.size > 0) {
        device.run('embeddingBackward', {
          ids: ids.view(),
          dy: dy!.view(),
          dTable: dTable.view(),
          rows,
          cols,
          count,
        });
      }
      return [dTable];
    },
  });
  return out;
}
