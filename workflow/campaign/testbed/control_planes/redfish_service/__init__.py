"""What emulated Redfish services have in common (DSP0266): who may ask, reads, versions, tasks and refusals."""
