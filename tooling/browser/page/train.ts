// Trains a few steps in the page. A hook until nn and fsdp can be built for pages.
import type { PageDevice } from './open-backend.ts';

export async function trainFewSteps(_device: PageDevice): Promise<readonly number[]> {
  throw new Error('the page does not train yet');
}
