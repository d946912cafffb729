//! Tables of apply and update.
