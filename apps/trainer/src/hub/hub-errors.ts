// What can go wrong with the Hub beside the caller's own mistakes.

import { TrainerError } from '../errors.js';

/** The Hub could not be asked: no connection, or no answer after several requests. */
export class HubUnreachableError extends TrainerError {
  override readonly code = 'HUB_UNREACHABLE';
  override readonly name = 'HubUnreachableError';
}

/** What came is not what the Hub says that the file is. */
export class HubContentError extends TrainerError {
  override readonly code = 'HUB_CONTENT';
  override readonly name = 'HubContentError';
}
